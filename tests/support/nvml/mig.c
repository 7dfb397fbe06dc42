/* NVML's entry points about multi-instance GPUs. */

#include "sim.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long Big;

/* A GPU instance or, with a compute instance, that one; handed out, never freed. */
typedef struct Instance {
    Handle *device;
    unsigned gi;
    int ci; /* -1: the GPU instance */
    struct Instance *next;
} Instance;

static Instance *instances;

static Instance *instance_of(Handle *device, unsigned gi, int ci);

static const Json *mig_of(const Json *gpu) {
    const Json *mig = json_get(gpu, "mig");
    return mig && mig->type == JSON_OBJECT ? mig : NULL;
}

static const Json *devices_of(const Json *gpu) { return json_get(mig_of(gpu), "devices"); }

static const Json *in_gpu(const Json *gpu, unsigned gi, int ci) {
    for (const Json *one = json_at(devices_of(gpu), 0); one; one = one->next)
        if (json_number(one, "gi", 0) == (long long)gi && (ci < 0 || json_number(one, "ci", 0) == ci)) return one;
    return NULL;
}

int nvmlDeviceGetMigMode(const Handle *handle, unsigned *current, unsigned *pending) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetMigMode", handle, &device);
    if (result) return result;
    if (json_null(device.gpu, "mig")) return sim_end(NOT_SUPPORTED);
    *current = (unsigned)json_number(mig_of(device.gpu), "current", 0);
    *pending = (unsigned)json_number(mig_of(device.gpu), "pending", 0);
    return sim_end(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(const Handle *handle, unsigned *count) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetMaxMigDeviceCount", handle, &device);
    if (result) return result;
    *count = json_null(device.gpu, "mig") ? 0 : (unsigned)json_number(mig_of(device.gpu), "max_devices", 7);
    return sim_end(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Handle *handle, unsigned index, Handle **out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetMigDeviceHandleByIndex", handle, &device);
    if (result) return result;
    if (!json_number(mig_of(device.gpu), "current", 0)) return sim_end(NOT_FOUND);
    for (const Json *one = json_at(devices_of(device.gpu), 0); one; one = one->next)
        if (sim_mig_index(device.gpu, one) == (int)index) {
            *out = sim_handle(handle->gpu, json_text(one, "uuid", ""));
            return sim_end(OK);
        }
    return sim_end(NOT_FOUND);
}

int nvmlDeviceIsMigDeviceHandle(const Handle *handle, unsigned *is) {
    Device device;
    int result = sim_begin_on("nvmlDeviceIsMigDeviceHandle", handle, &device);
    if (result) return result;
    *is = device.mig != NULL;
    return sim_end(OK);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const Handle *handle, Handle **out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, &device);
    if (result) return result;
    *out = sim_handle(handle->gpu, "");
    return sim_end(OK);
}

static int instance_number(const char *function, const Handle *handle, const char *key, unsigned *out) {
    Device device;
    int result = sim_begin_on(function, handle, &device);
    if (result) return result;
    if (!device.mig) return sim_end(NOT_SUPPORTED);
    *out = (unsigned)json_number(device.mig, key, 0);
    return sim_end(OK);
}

int nvmlDeviceGetGpuInstanceId(const Handle *handle, unsigned *id) {
    return instance_number("nvmlDeviceGetGpuInstanceId", handle, "gi", id);
}

int nvmlDeviceGetComputeInstanceId(const Handle *handle, unsigned *id) {
    return instance_number("nvmlDeviceGetComputeInstanceId", handle, "ci", id);
}

typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, slices, ci_slices;
    Big memory;
} Attributes;

int nvmlDeviceGetAttributes_v2(const Handle *handle, Attributes *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetAttributes", handle, &device);
    if (result) return result;
    if (!device.mig) return sim_end(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    out->multiprocessors = (unsigned)json_number(device.mig, "multiprocessors", 14);
    out->copy = 1;
    out->slices = (unsigned)json_number(device.mig, "slices", 1);
    out->ci_slices = (unsigned)json_number(device.mig, "ci_slices", 1);
    out->memory = (Big)json_number(device.mig, "memory_mib", 9856);
    return sim_end(OK);
}

static Instance *instance_of(Handle *device, unsigned gi, int ci) {
    for (Instance *one = instances; one; one = one->next)
        if (one->device == device && one->gi == gi && one->ci == ci) return one;
    static Instance pool[4096];
    static size_t used;
    if (used == sizeof pool / sizeof *pool) return NULL;
    Instance *made = &pool[used++];
    *made = (Instance){device, gi, ci, instances};
    return instances = made;
}

/* Gives the lock back. */
static int hand_out(const Json *gpu, const Handle *handle, unsigned gi, int ci, Instance **out) {
    if (!in_gpu(gpu, gi, ci)) return sim_end(NOT_FOUND);
    *out = instance_of(sim_handle(handle->gpu, handle->mig), gi, ci);
    return sim_end(*out ? OK : UNKNOWN);
}

int nvmlDeviceGetGpuInstanceById(const Handle *handle, unsigned id, Instance **out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetGpuInstanceById", handle, &device);
    return result ? result : hand_out(device.gpu, handle, id, -1, out);
}

int nvmlGpuInstanceGetComputeInstanceById(const Instance *instance, unsigned id, Instance **out) {
    Device device;
    int result = sim_begin_on("nvmlGpuInstanceGetComputeInstanceById", instance->device, &device);
    return result ? result : hand_out(device.gpu, instance->device, instance->gi, (int)id, out);
}

typedef struct {
    Handle *device;
    unsigned id, profile, start, size;
} GpuInstanceInfo;
typedef struct {
    Handle *device;
    Instance *instance;
    unsigned id, profile, start, size;
} ComputeInstanceInfo;

/* What the GPU calls a profile; profiles that the file does not tell are called something nobody knows. */
static unsigned profile_id(const Json *gpu, long long profile) {
    for (const Json *one = json_at(json_get(mig_of(gpu), "profiles"), 0); one; one = one->next)
        if (json_number(one, "profile", -1) == profile) return (unsigned)json_number(one, "id", 0);
    return (unsigned)(1000 + profile);
}

int nvmlGpuInstanceGetInfo(const Instance *instance, GpuInstanceInfo *out) {
    Device device;
    int result = sim_begin_on("nvmlGpuInstanceGetInfo", instance->device, &device);
    if (result) return result;
    const Json *found = in_gpu(device.gpu, instance->gi, -1);
    if (!found) return sim_end(NOT_FOUND);
    unsigned profile = profile_id(device.gpu, json_number(found, "profile", 0));
    *out = (GpuInstanceInfo){instance->device, instance->gi, profile, 0, 0};
    return sim_end(OK);
}

int nvmlComputeInstanceGetInfo_v2(const Instance *instance, ComputeInstanceInfo *out) {
    Device device;
    int result = sim_begin_on("nvmlComputeInstanceGetInfo", instance->device, &device);
    if (result) return result;
    const Json *found = in_gpu(device.gpu, instance->gi, instance->ci);
    if (!found) return sim_end(NOT_FOUND);
    Instance *parent = instance_of(instance->device, instance->gi, -1);
    unsigned profile = (unsigned)json_number(found, "ci_profile", 0);
    *out = (ComputeInstanceInfo){instance->device, parent, (unsigned)instance->ci, profile, 0, 0};
    return sim_end(OK);
}

typedef struct {
    unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    Big memory;
} ProfileInfo;
typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    Big memory;
    char name[96];
} ProfileInfoV;

int nvmlDeviceGetGpuInstanceProfileInfoV(const Handle *handle, unsigned profile, ProfileInfoV *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetGpuInstanceProfileInfo", handle, &device);
    if (result) return result;
    for (const Json *one = json_at(json_get(mig_of(device.gpu), "profiles"), 0); one; one = one->next) {
        if (json_number(one, "profile", -1) != (long long)profile) continue;
        out->id = (unsigned)json_number(one, "id", 0);
        out->slices = (unsigned)json_number(one, "slices", 0);
        out->instances = (unsigned)json_number(one, "instances", 0);
        out->memory = (Big)json_number(one, "memory_mib", 0);
        snprintf(out->name, sizeof out->name, "MIG %s", json_text(one, "name", ""));
        return sim_end(OK);
    }
    return sim_end(NOT_SUPPORTED);
}

int nvmlDeviceGetGpuInstanceProfileInfo(const Handle *handle, unsigned profile, ProfileInfo *out) {
    ProfileInfoV info = {0};
    int result = nvmlDeviceGetGpuInstanceProfileInfoV(handle, profile, &info);
    if (result) return result;
    *out = (ProfileInfo){.id = info.id, .slices = info.slices, .instances = info.instances, .memory = info.memory};
    return OK;
}
