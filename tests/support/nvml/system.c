/* NVML's entry points: the library itself, the system, handles of GPUs, topology. */

#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static int put(char *out, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return sim_init();
}

int nvmlInit_v2(void) { return sim_init(); }
int nvmlInit(void) { return sim_init(); }

int nvmlShutdown(void) {
    int result = sim_begin("nvmlShutdown", 1);
    if (result) return result;
    sim_up = 0;
    return sim_end(OK);
}

const char *nvmlErrorString(int code) {
    static const char *const TEXTS[] = {
        [0] = "Success",          [1] = "Uninitialized",     [2] = "Invalid Argument",     [3] = "Not Supported",
        [4] = "No Permission",    [6] = "Not Found",         [7] = "Insufficient Size",    [9] = "Driver Not Loaded",
        [10] = "Timeout",         [12] = "No Library",       [13] = "No Such Function",    [15] = "GPU is lost",
        [16] = "Reset Required",  [17] = "Operating System", [18] = "Version Mismatch",    [19] = "In Use",
        [20] = "No Memory",       [21] = "No Data",
    };
    int known = code >= 0 && code < (int)(sizeof TEXTS / sizeof *TEXTS) && TEXTS[code];
    return known ? TEXTS[code] : "Unknown Error";
}

static int system_text(const char *function, const char *key, const char *otherwise, char *out, unsigned size) {
    int result = sim_begin(function, 1);
    return result ? result : sim_end(put(out, size, json_text(sim_state(), key, otherwise)));
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    return system_text("nvmlSystemGetDriverVersion", "driver", "580.95.05", version, size);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    return system_text("nvmlSystemGetNVMLVersion", "nvml", "13.580.95.05", version, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int result = sim_begin("nvmlSystemGetCudaDriverVersion", 1);
    if (result) return result;
    *version = (int)json_number(sim_state(), "cuda", 13000);
    return sim_end(OK);
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int result = sim_begin("nvmlDeviceGetCount", 1);
    if (result) return result;
    *count = (unsigned)sim_count();
    return sim_end(OK);
}

int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* With the lock held: the handle of a GPU, or what the file says about asking for it. Gives the lock back. */
static int hand_out(const char *function, const Json *gpu, const char *mig, Handle **out) {
    if (!gpu) return sim_end(NOT_FOUND);
    char uuid[96];
    snprintf(uuid, sizeof uuid, "%s", json_text(gpu, "uuid", ""));
    int result = sim_fails(function, gpu);
    if (result) return sim_end(result);
    *out = sim_handle(uuid, mig);
    return sim_end(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
    int result = sim_begin("nvmlDeviceGetHandleByIndex", 1);
    if (result) return result;
    const Json *gpu = index < 0x10000 ? sim_present((int)index) : NULL;
    return gpu ? hand_out("nvmlDeviceGetHandleByIndex", gpu, "", out) : sim_end(INVALID_ARGUMENT);
}

int nvmlDeviceGetHandleByIndex(unsigned index, Handle **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    const char *function = "nvmlDeviceGetHandleByUUID";
    int result = sim_begin(function, 1);
    if (result) return result;
    const Json *gpu;
    for (int index = 0; (gpu = sim_present(index)); ++index) {
        if (!strcmp(json_text(gpu, "uuid", ""), uuid)) return hand_out(function, gpu, "", out);
        const Json *devices = json_get(json_get(gpu, "mig"), "devices");
        for (const Json *one = json_at(devices, 0); one; one = one->next)
            if (!strcmp(json_text(one, "uuid", ""), uuid)) return hand_out(function, gpu, uuid, out);
    }
    return sim_end(NOT_FOUND);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, Handle **out) {
    const char *function = "nvmlDeviceGetHandleByPciBusId";
    int result = sim_begin(function, 1);
    if (result) return result;
    size_t length = strlen(address);
    if (length > 12) address += length - 12;
    const Json *gpu;
    for (int index = 0; (gpu = sim_present(index)); ++index)
        if (!strcasecmp(json_text(gpu, "pci", ""), address)) return hand_out(function, gpu, "", out);
    return sim_end(NOT_FOUND);
}

int nvmlDeviceGetHandleByPciBusId(const char *address, Handle **out) {
    return nvmlDeviceGetHandleByPciBusId_v2(address, out);
}

int nvmlDeviceGetIndex(const Handle *handle, unsigned *index) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetIndex", handle, &device);
    if (result) return result;
    int found = 0;
    if (device.mig) {
        found = sim_mig_index(device.gpu, device.mig);
    } else {
        while (sim_present(found) != device.gpu) ++found;
    }
    *index = (unsigned)found;
    return sim_end(OK);
}

static int joins(const Json *row, const char *one, const char *other) {
    const Json *a = json_at(row, 0), *b = json_at(row, 1);
    if (!a || !b || !a->text || !b->text) return 0;
    return (!strcmp(a->text, one) && !strcmp(b->text, other)) || (!strcmp(a->text, other) && !strcmp(b->text, one));
}

int nvmlDeviceGetTopologyCommonAncestor(const Handle *one, const Handle *other, int *level) {
    const char *function = "nvmlDeviceGetTopologyCommonAncestor";
    Device device;
    int result = sim_begin_on(function, one, &device);
    if (result) return result;
    sim_end(OK);
    result = sim_begin_on(function, other, &device);
    if (result) return result;
    *level = 50;
    for (const Json *row = json_at(json_get(sim_state(), "topology"), 0); row; row = row->next)
        if (joins(row, one->gpu, other->gpu)) {
            *level = (int)json_at(row, 2)->number;
            break;
        }
    return sim_end(OK);
}
