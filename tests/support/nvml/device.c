/* NVML's entry points about one GPU or MIG device. */

#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Big;

/* The simplest calls: one number of the GPU, `otherwise` where the file lacks it, not supported where it is null. */
#define NUMBER(function, type, key, otherwise)                        \
    int function(const Handle *handle, type *out) {                   \
        Device device;                                                \
        int result = sim_begin_on(#function, handle, &device);        \
        if (result) return result;                                    \
        if (json_null(device.gpu, key)) return sim_end(NOT_SUPPORTED); \
        *out = (type)json_number(device.gpu, key, otherwise);         \
        return sim_end(OK);                                           \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor", 0)
NUMBER(nvmlDeviceGetArchitecture, unsigned, "arch", 9)
NUMBER(nvmlDeviceGetBrand, unsigned, "brand", 14)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, "virtualization", 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode", 0)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power", 80000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit", 700000)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, Big, "clock_reasons", 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, Big, "event_types", 0xFF9F)

/* A number of a part of the GPU, which may be null. */
#define PART(function, type, part, key, otherwise)                     \
    int function(const Handle *handle, type *out) {                    \
        Device device;                                                 \
        int result = sim_begin_on(#function, handle, &device);         \
        if (result) return result;                                     \
        if (json_null(device.gpu, part)) return sim_end(NOT_SUPPORTED); \
        *out = (type)json_number(json_get(device.gpu, part), key, otherwise); \
        return sim_end(OK);                                            \
    }

PART(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie", "generation", 5)
PART(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie", "generation_max", 5)
PART(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie", "width", 16)
PART(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie", "width_max", 16)
PART(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie", "replays", 0)

/* What the file does not have unless it says so. */
#define RARE(function, kind, key)                                      \
    int function(const Handle *handle, kind *out) {                    \
        Device device;                                                 \
        int result = sim_begin_on(#function, handle, &device);         \
        if (result) return result;                                     \
        const Json *found = json_get(device.gpu, key);                 \
        if (!found || found->type != JSON_NUMBER) return sim_end(NOT_SUPPORTED); \
        *out = (kind)found->number;                                    \
        return sim_end(OK);                                            \
    }

RARE(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending")

static int put(char *out, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

static const Json *profile_of(const Json *gpu, long long profile) {
    const Json *profiles = json_get(json_get(gpu, "mig"), "profiles");
    for (const Json *one = json_at(profiles, 0); one; one = one->next)
        if (json_number(one, "profile", -1) == profile) return one;
    return NULL;
}

int nvmlDeviceGetUUID(const Handle *handle, char *out, unsigned size) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetUUID", handle, &device);
    return result ? result : sim_end(put(out, size, json_text(device.mig ? device.mig : device.gpu, "uuid", "")));
}

int nvmlDeviceGetName(const Handle *handle, char *out, unsigned size) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetName", handle, &device);
    if (result) return result;
    char name[160];
    const char *card = json_text(device.gpu, "name", "NVIDIA H100 80GB HBM3");
    if (device.mig) {
        const Json *profile = profile_of(device.gpu, json_number(device.mig, "profile", 0));
        snprintf(name, sizeof name, "%s MIG %s", card, json_text(profile, "name", ""));
    } else {
        snprintf(name, sizeof name, "%s", card);
    }
    return sim_end(put(out, size, name));
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} Pci;

/* NVML's way of writing an address: eight digits for the domain, capitals. */
static void fill_pci(Pci *out, const char *address) {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function);
    memset(out, 0, sizeof *out);
    out->domain = domain;
    out->bus = bus;
    out->device = slot;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", domain & 0xFFFF, bus & 0xFF, slot & 0xFF,
             function & 0xF);
    snprintf(out->address, sizeof out->address, "%08X:%02X:%02X.%X", domain, bus & 0xFF, slot & 0xFF, function & 0xF);
}

int nvmlDeviceGetPciInfo_v3(const Handle *handle, Pci *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetPciInfo", handle, &device);
    if (result) return result;
    fill_pci(out, json_text(device.gpu, "pci", ""));
    out->id = (unsigned)json_number(device.gpu, "pci_device", 0x233010DE);
    out->subsystem = (unsigned)json_number(device.gpu, "pci_subsystem", 0x16C110DE);
    return sim_end(OK);
}

static Big memory_of(Device device) {
    if (device.mig) return (Big)json_number(device.mig, "memory_mib", 9856) << 20;
    return (Big)json_number(device.gpu, "memory", 80LL << 30);
}

typedef struct {
    Big total, free, used;
} Memory;
typedef struct {
    unsigned version;
    Big total, reserved, free, used;
} Memory2;

int nvmlDeviceGetMemoryInfo(const Handle *handle, Memory *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetMemoryInfo", handle, &device);
    if (result) return result;
    out->total = out->free = memory_of(device);
    out->used = 0;
    return sim_end(OK);
}

int nvmlDeviceGetMemoryInfo_v2(const Handle *handle, Memory2 *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetMemoryInfo", handle, &device);
    if (result) return result;
    out->total = out->free = memory_of(device);
    out->used = out->reserved = 0;
    return sim_end(OK);
}

int nvmlDeviceGetCudaComputeCapability(const Handle *handle, int *major, int *minor) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetCudaComputeCapability", handle, &device);
    if (result) return result;
    const Json *compute = json_get(device.gpu, "compute"), *first = json_at(compute, 0), *second = json_at(compute, 1);
    *major = first ? (int)first->number : 9;
    *minor = second ? (int)second->number : 0;
    return sim_end(OK);
}

typedef struct {
    unsigned version, value;
} AddressingMode;

int nvmlDeviceGetAddressingMode(const Handle *handle, AddressingMode *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetAddressingMode", handle, &device);
    if (result) return result;
    const Json *mode = json_get(device.gpu, "addressing_mode");
    if (!mode || mode->type != JSON_NUMBER) return sim_end(NOT_SUPPORTED);
    out->value = (unsigned)mode->number;
    return sim_end(OK);
}

int nvmlDeviceSetComputeMode(const Handle *handle, int mode) {
    Device device;
    (void)mode;
    int result = sim_begin_on("nvmlDeviceSetComputeMode", handle, &device);
    return result ? result : sim_end(OK);
}

static const Json *link_of(const Json *gpu, unsigned link) {
    for (const Json *one = json_at(json_get(gpu, "nvlinks"), 0); one; one = one->next)
        if (json_number(one, "link", -1) == (long long)link) return one;
    return NULL;
}

#define LINK(function, type, statement)                            \
    int function(const Handle *handle, unsigned number, type *out) { \
        Device device;                                              \
        int result = sim_begin_on(PLAIN, handle, &device);          \
        if (result) return result;                                  \
        const Json *link = link_of(device.gpu, number);             \
        if (!link) return sim_end(NOT_SUPPORTED);                   \
        statement;                                                  \
        return sim_end(OK);                                         \
    }

#define PLAIN "nvmlDeviceGetNvLinkState"
LINK(nvmlDeviceGetNvLinkState, unsigned, *out = !json_get(link, "active") || json_true(link, "active"))
#undef PLAIN
#define PLAIN "nvmlDeviceGetNvLinkVersion"
LINK(nvmlDeviceGetNvLinkVersion, unsigned, *out = (unsigned)json_number(link, "version", 4))
#undef PLAIN
#define PLAIN "nvmlDeviceGetNvLinkRemotePciInfo"
LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, Pci, fill_pci(out, json_text(link, "remote", "")))
#undef PLAIN

int nvmlDeviceGetTotalEccErrors(const Handle *handle, int kind, int counter, Big *count) {
    static const char *const KEYS[2][2] = {{"volatile_corrected", "volatile_uncorrected"},
                                           {"aggregate_corrected", "aggregate_uncorrected"}};
    Device device;
    int result = sim_begin_on("nvmlDeviceGetTotalEccErrors", handle, &device);
    if (result) return result;
    if (json_null(device.gpu, "ecc")) return sim_end(NOT_SUPPORTED);
    *count = (Big)json_number(json_get(device.gpu, "ecc"), KEYS[counter != 0][kind != 0], 0);
    return sim_end(OK);
}

int nvmlDeviceGetRemappedRows(const Handle *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetRemappedRows", handle, &device);
    if (result) return result;
    if (json_null(device.gpu, "remapped")) return sim_end(NOT_SUPPORTED);
    const Json *rows = json_get(device.gpu, "remapped");
    *correctable = (unsigned)json_number(rows, "correctable", 0);
    *uncorrectable = (unsigned)json_number(rows, "uncorrectable", 0);
    *pending = (unsigned)json_number(rows, "pending", 0);
    *failure = (unsigned)json_number(rows, "failure", 0);
    return sim_end(OK);
}

typedef struct {
    unsigned field, scope;
    long long time, latency;
    int type, result;
    Big value;
} FieldValue;

int nvmlDeviceGetFieldValues(const Handle *handle, int count, FieldValue *values) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetFieldValues", handle, &device);
    if (result) return result;
    for (FieldValue *one = values; one < values + count; ++one) {
        char key[16];
        snprintf(key, sizeof key, "%u", one->field);
        const Json *found = json_get(json_get(device.gpu, "fields"), key);
        int action = !found && one->field == 230 && !json_null(device.gpu, "recovery_action");
        one->type = 3;
        one->result = found || action ? OK : NOT_SUPPORTED;
        one->value = found ? (Big)found->number : action ? (Big)json_number(device.gpu, "recovery_action", 0) : 0;
    }
    return sim_end(OK);
}

int nvmlDeviceGetTemperature(const Handle *handle, int sensor, unsigned *out) {
    Device device;
    (void)sensor;
    int result = sim_begin_on("nvmlDeviceGetTemperature", handle, &device);
    if (result) return result;
    *out = (unsigned)json_number(device.gpu, "temperature", 40);
    return sim_end(OK);
}

int nvmlDeviceGetTemperatureThreshold(const Handle *handle, int threshold, unsigned *out) {
    Device device;
    int result = sim_begin_on("nvmlDeviceGetTemperatureThreshold", handle, &device);
    if (result) return result;
    if (threshold == 0) *out = (unsigned)json_number(device.gpu, "temperature_shutdown", 92);
    else if (threshold == 1) *out = (unsigned)json_number(device.gpu, "temperature_slowdown", 89);
    else if (threshold == 3) *out = (unsigned)json_number(device.gpu, "temperature_max", 87);
    else return sim_end(NOT_SUPPORTED);
    return sim_end(OK);
}

static void fill_uuid(unsigned char *out, const char *text) {
    memset(out, 0, 16);
    for (int place = 0; place < 32 && *text; ++text) {
        char digit[2] = {*text, 0};
        if (*text == '-') continue;
        out[place / 2] |= (unsigned char)(strtoul(digit, NULL, 16) << (place % 2 ? 0 : 4));
        ++place;
    }
}

typedef struct {
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
} Fabric;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} FabricV;

static int fabric(const char *function, const Handle *handle, FabricV *out) {
    Device device;
    int result = sim_begin_on(function, handle, &device);
    if (result) return result;
    const Json *found = json_get(device.gpu, "fabric");
    if (!found || found->type != JSON_OBJECT) return sim_end(NOT_SUPPORTED);
    fill_uuid(out->cluster, json_text(found, "cluster", ""));
    out->status = (int)json_number(found, "status", 0);
    out->clique = (unsigned)json_number(found, "clique", 0);
    out->state = (unsigned char)json_number(found, "state", 3);
    out->health = (unsigned)json_number(found, "health", 0);
    return sim_end(OK);
}

int nvmlDeviceGetGpuFabricInfoV(const Handle *handle, FabricV *out) {
    return fabric("nvmlDeviceGetGpuFabricInfoV", handle, out);
}

int nvmlDeviceGetGpuFabricInfo(const Handle *handle, Fabric *out) {
    FabricV info;
    int result = fabric("nvmlDeviceGetGpuFabricInfo", handle, &info);
    if (result) return result;
    memcpy(out->cluster, info.cluster, sizeof out->cluster);
    out->status = info.status;
    out->clique = info.clique;
    out->state = info.state;
    return OK;
}
