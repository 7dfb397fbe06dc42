/* NVML's entry points about events. */

#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long Big;

typedef struct Registered {
    char gpu[96];
    Big types;
    struct Registered *next;
} Registered;

typedef struct {
    long long place; /* the last number that was looked at */
    Registered *registered;
} EventSet;

typedef struct {
    Handle *device;
    Big type, data;
    unsigned gi, ci;
} EventData;

static const Json *events(void) { return json_get(sim_state(), "events"); }

int nvmlEventSetCreate(EventSet **out) {
    int result = sim_begin("nvmlEventSetCreate", 1);
    if (result) return result;
    EventSet *made = calloc(1, sizeof *made);
    for (const Json *one = json_at(events(), 0); one; one = one->next)
        if (json_number(one, "seq", 0) > made->place) made->place = json_number(one, "seq", 0);
    *out = made;
    return sim_end(OK);
}

int nvmlEventSetFree(EventSet *set) {
    int result = sim_begin("nvmlEventSetFree", 1);
    if (result) return result;
    while (set->registered) {
        Registered *next = set->registered->next;
        free(set->registered);
        set->registered = next;
    }
    free(set);
    return sim_end(OK);
}

int nvmlDeviceRegisterEvents(const Handle *handle, Big types, EventSet *set) {
    Device device;
    int result = sim_begin_on("nvmlDeviceRegisterEvents", handle, &device);
    if (result) return result;
    if (device.mig || types & ~(Big)json_number(device.gpu, "event_types", 0xFF9F)) return sim_end(NOT_SUPPORTED);
    Registered *made = calloc(1, sizeof *made);
    strcpy(made->gpu, handle->gpu);
    made->types = types;
    made->next = set->registered;
    set->registered = made;
    return sim_end(OK);
}

static int wanted(const EventSet *set, const Json *event) {
    Big type = (Big)json_number(event, "type", 0);
    for (const Registered *one = set->registered; one; one = one->next)
        if (!strcmp(one->gpu, json_text(event, "gpu", "")) && one->types & type) return 1;
    return 0;
}

/* The next event of the set by its number, or NULL; moves on to it. */
static const Json *next_of(EventSet *set) {
    for (;;) {
        const Json *next = NULL;
        for (const Json *one = json_at(events(), 0); one; one = one->next) {
            long long seq = json_number(one, "seq", 0);
            if (seq > set->place && (!next || seq < json_number(next, "seq", 0))) next = one;
        }
        if (!next) return NULL;
        set->place = json_number(next, "seq", 0);
        if (wanted(set, next)) return next;
    }
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned milliseconds) {
    int result = sim_begin("nvmlEventSetWait", 1);
    if (result) return result;
    long long end = now_ms() + milliseconds;
    const Json *found;
    while (!(found = next_of(set))) {
        if (now_ms() >= end) return sim_end(TIMEOUT);
        sim_pause();
    }
    out->device = sim_handle(json_text(found, "gpu", ""), "");
    out->type = (Big)json_number(found, "type", 0);
    out->data = (Big)json_number(found, "data", 0);
    out->gi = (unsigned)json_number(found, "gi", 0xFFFFFFFF);
    out->ci = (unsigned)json_number(found, "ci", 0xFFFFFFFF);
    return sim_end(OK);
}
