#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int sim_up;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Json *state;
static struct stat seen;
static Handle *handles;

static const struct {
    const char *name;
    int code;
} ERRORS[] = {
    {"ok", OK},
    {"uninitialized", UNINITIALIZED},
    {"invalid_argument", INVALID_ARGUMENT},
    {"not_supported", NOT_SUPPORTED},
    {"no_permission", 4},
    {"not_found", NOT_FOUND},
    {"driver_not_loaded", 9},
    {"timeout", TIMEOUT},
    {"library_not_found", 12},
    {"function_not_found", 13},
    {"gpu_is_lost", GPU_IS_LOST},
    {"reset_required", 16},
    {"operating_system", 17},
    {"lib_rm_version_mismatch", 18},
    {"in_use", 19},
    {"memory", 20},
    {"no_data", 21},
};

static int code_of(const char *name) {
    for (size_t place = 0; place < sizeof ERRORS / sizeof *ERRORS; ++place)
        if (!strcmp(ERRORS[place].name, name)) return ERRORS[place].code;
    return UNKNOWN;
}

static int fits(const char *pattern, const char *function) {
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*') return !strncmp(pattern, function, length - 1);
    return !strcmp(pattern, function);
}

static const char *file(void) {
    static char path[4096];
    if (!*path) {
        Dl_info here;
        const char *library = dladdr((void *)file, &here) && here.dli_fname ? here.dli_fname : "./";
        const char *slash = strrchr(library, '/');
        snprintf(path, sizeof path, "%.*snvml.json", slash ? (int)(slash - library + 1) : 0, library);
    }
    return path;
}

static char *contents(const char *path, size_t size) {
    FILE *stream = fopen(path, "rb");
    if (!stream) return NULL;
    char *text = malloc(size + 1);
    text[fread(text, 1, size, stream)] = 0;
    fclose(stream);
    return text;
}

/* A file that is no complete JSON leaves the last good state in force; one that is not there is a missing driver. */
static void reread(void) {
    struct stat now;
    if (stat(file(), &now)) {
        json_free(state);
        state = NULL;
        memset(&seen, 0, sizeof seen);
        return;
    }
    if (state && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    char *text = contents(file(), (size_t)now.st_size);
    Json *read = text ? json_parse(text) : NULL;
    free(text);
    if (read) {
        json_free(state);
        state = read;
        seen = now;
    }
}

const Json *sim_state(void) { return state; }

static const char *init_says(void) { return state ? json_text(state, "init", "ok") : "library_not_found"; }

void sim_pause(void) {
    struct timespec moment = {0, 50 * 1000 * 1000};
    pthread_mutex_unlock(&lock);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&lock);
    reread();
}

static int listed(const Json *patterns, const char *function) {
    for (const Json *one = json_at(patterns, 0); one; one = one->next)
        if (one->text && fits(one->text, function)) return 1;
    return 0;
}

static int error_of(const Json *errors, const char *function) {
    for (const Json *one = errors && errors->type == JSON_OBJECT ? errors->first : NULL; one; one = one->next)
        if (one->text && fits(one->key, function)) return code_of(one->text);
    return OK;
}

/* With the lock held: what the file says about every call. */
static int ready(const char *function, int needs_init) {
    reread();
    while (listed(json_get(state, "hang"), function)) sim_pause();
    if (needs_init && strcmp(init_says(), "ok")) sim_up = 0;
    if (needs_init && !sim_up) return UNINITIALIZED;
    return error_of(json_get(state, "errors"), function);
}

int sim_end(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

int sim_begin(const char *function, int needs_init) {
    pthread_mutex_lock(&lock);
    int result = ready(function, needs_init);
    return result ? sim_end(result) : OK;
}

int sim_init(void) {
    pthread_mutex_lock(&lock);
    reread();
    while (!strcmp(init_says(), "hang")) sim_pause();
    int result = ready("nvmlInitWithFlags", 0);
    if (!result) result = code_of(init_says());
    if (!result) sim_up = 1;
    return sim_end(result);
}

static const Json *gpus(void) { return json_get(state, "gpus"); }

const Json *sim_present(int index) {
    for (const Json *gpu = json_at(gpus(), 0); gpu; gpu = gpu->next)
        if (!json_true(gpu, "gone") && index-- == 0) return gpu;
    return NULL;
}

int sim_count(void) {
    int count = 0;
    while (sim_present(count)) ++count;
    return count;
}

const Json *sim_gpu(const char *uuid) {
    for (const Json *gpu = json_at(gpus(), 0); gpu; gpu = gpu->next)
        if (!json_true(gpu, "gone") && !strcmp(json_text(gpu, "uuid", ""), uuid)) return gpu;
    return NULL;
}

int sim_fails(const char *function, const Json *gpu) {
    char uuid[96];
    snprintf(uuid, sizeof uuid, "%s", json_text(gpu, "uuid", ""));
    for (;;) {
        int result = ready(function, 1);
        if (result) return result;
        gpu = sim_gpu(uuid);
        if (!gpu) return GPU_IS_LOST;
        if (!listed(json_get(gpu, "hang"), function)) return error_of(json_get(gpu, "errors"), function);
        sim_pause();
    }
}

int sim_begin_on(const char *function, const Handle *handle, Device *device) {
    int result = sim_begin(function, 1);
    if (result) return result;
    if (!handle) return sim_end(INVALID_ARGUMENT);
    device->gpu = sim_gpu(handle->gpu);
    device->mig = NULL;
    if (!device->gpu) return sim_end(GPU_IS_LOST);
    result = sim_fails(function, device->gpu);
    if (result) return sim_end(result);
    device->gpu = sim_gpu(handle->gpu); /* the file may be another one now */
    if (!device->gpu) return sim_end(GPU_IS_LOST);
    if (!*handle->mig) return OK;
    const Json *devices = json_get(json_get(device->gpu, "mig"), "devices");
    for (const Json *one = json_at(devices, 0); one; one = one->next)
        if (!strcmp(json_text(one, "uuid", ""), handle->mig)) device->mig = one;
    return device->mig ? OK : sim_end(INVALID_ARGUMENT);
}

Handle *sim_handle(const char *gpu, const char *mig) {
    for (Handle *one = handles; one; one = one->next)
        if (!strcmp(one->gpu, gpu) && !strcmp(one->mig, mig)) return one;
    Handle *made = calloc(1, sizeof *made);
    snprintf(made->gpu, sizeof made->gpu, "%s", gpu);
    snprintf(made->mig, sizeof made->mig, "%s", mig);
    made->next = handles;
    return handles = made;
}

int sim_mig_index(const Json *gpu, const Json *mig) {
    long long index = json_number(mig, "index", -1);
    if (index >= 0) return (int)index;
    int place = 0;
    const Json *devices = json_get(json_get(gpu, "mig"), "devices");
    for (const Json *one = json_at(devices, 0); one && one != mig; one = one->next) ++place;
    return place;
}
