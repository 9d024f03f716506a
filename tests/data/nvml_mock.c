/* A stand-in for libnvidia-ml.so.1 with the ABI of nvml.h, for tests: values, failures, hangs and events on demand.
 *
 * Values are set by key ("power", "ecc.1.0.2", "link.3", "linkerr.3.0") and GPU; what was not set has the value given
 * in value()'s last argument. Failures are set by function name, with the arguments after the handle where it has any
 * ("nvmlDeviceGetNvLinkState.17"), or without them for all. A test that is another process than the driver's writes
 * "key gpu value" lines (and "gpus 0 N") into the file that TRACKWALKER_NVML_MOCK_FILE names; it is read again when it changes.
 * A node of a Slurm cluster on one machine has its own file where there is one: "<file>.<node>". */
#pragma GCC diagnostic ignored "-Wformat-zero-length"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };

typedef unsigned int uint;
typedef unsigned long long ull;
typedef struct nvmlDevice_st { int index; } *Device;
typedef struct { ull total, free, used; } Memory;
typedef struct { uint version; ull total, reserved, free, used; } MemoryV2;
typedef struct { uint gpu, memory; } Utilization;
typedef struct { ull referenceTime, violationTime; } ViolationTime;
typedef union { double d; uint ui; unsigned long ul; ull ull_; long long sll; int si; unsigned short us; } Value;
typedef struct { uint fieldId, scopeId; long long timestamp, latencyUsec; int valueType, nvmlReturn; Value value; } FieldValue;
typedef struct { char busIdLegacy[16]; uint domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } PciInfo;
typedef struct { uint pid; ull usedGpuMemory; uint gpuInstanceId, computeInstanceId; } ProcessInfo;
typedef struct { uint pid; ull timeStamp; uint smUtil, memUtil, encUtil, decUtil; } ProcessUtilization;
typedef struct { Device device; ull eventType, eventData; uint gpuInstanceId, computeInstanceId; } EventData;

_Static_assert(sizeof(Memory) == 24 && sizeof(MemoryV2) == 40 && sizeof(FieldValue) == 40, "nvml.h");
_Static_assert(sizeof(PciInfo) == 68 && sizeof(ProcessInfo) == 24 && sizeof(EventData) == 32, "nvml.h");
_Static_assert(sizeof(ProcessUtilization) == 32 && offsetof(ProcessUtilization, smUtil) == 16, "nvml.h");

#define GPUS 16
#define SETTINGS 512
static struct nvmlDevice_st devices[GPUS];
static struct nvmlDevice_st slices[4 * GPUS]; /* behind the GPUs: slice i of GPU g is device GPUS + 4 * g + i */
static volatile int initialized, count;
static volatile int hanging;
static struct { char key[64]; int gpu; ull value; } values[SETTINGS], failures[SETTINGS], calls[4096];
static volatile int n_values, n_failures, n_calls;
static struct { int gpu; ull type, data; } events[64];
static volatile int n_events, next_event;
static int registered[GPUS];

/* --- for the test --- */
int mock_layout(int which) {
    const size_t at[] = {offsetof(MemoryV2, total), offsetof(MemoryV2, used), offsetof(FieldValue, valueType),
                         offsetof(FieldValue, value), offsetof(PciInfo, domain), offsetof(PciInfo, busId),
                         offsetof(ProcessInfo, gpuInstanceId), offsetof(EventData, eventData),
                         offsetof(EventData, gpuInstanceId), offsetof(ViolationTime, violationTime)};
    return which < (int)(sizeof at / sizeof *at) ? (int)at[which] : -1;
}
void mock_gpus(int n) {
    count = n;
    for (int i = 0; i < GPUS; i++) devices[i].index = i;
}
void mock_value(const char *key, int gpu, ull value) {
    snprintf(values[n_values].key, 64, "%s", key);
    values[n_values].gpu = gpu;
    values[n_values++].value = value;
}
void mock_fail(const char *key, int gpu, int code) { /* gpu -1: all; code 0: works again; 1000: hangs until released */
    snprintf(failures[n_failures].key, 64, "%s", key);
    failures[n_failures].gpu = gpu;
    failures[n_failures++].value = (ull)code;
}
void mock_release(void) { hanging = -1; }
int mock_hanging(void) { return hanging; }
void mock_event(int gpu, ull type, ull data) {
    events[n_events].gpu = gpu;
    events[n_events].type = type;
    events[n_events].data = data;
    __sync_synchronize();
    n_events++;
}
int mock_calls(const char *key, int gpu) {
    int sum = 0;
    for (int i = 0; i < n_calls; i++)
        if (!strcmp(calls[i].key, key) && (gpu < 0 || calls[i].gpu == gpu)) sum += (int)calls[i].value;
    return sum;
}

static void reload(void) {
    static volatile int lock;
    static struct timespec seen;
    const char *name = getenv("TRACKWALKER_NVML_MOCK_FILE"), *node = getenv("SLURMD_NODENAME");
    char path[512];
    struct stat now;
    snprintf(path, sizeof path, "%s.%s", name ? name : "", node ? node : "");
    if (name && stat(path, &now)) snprintf(path, sizeof path, "%s", name);
    if (!name || stat(path, &now) || (now.st_mtim.tv_sec == seen.tv_sec && now.st_mtim.tv_nsec == seen.tv_nsec)) return;
    while (__sync_lock_test_and_set(&lock, 1)) {}
    FILE *file = fopen(path, "r");
    char key[64];
    int gpu;
    ull number;
    n_values = 0;
    while (file && fscanf(file, "%63s %d %llu", key, &gpu, &number) == 3) {
        if (!strcmp(key, "gpus")) mock_gpus((int)number);
        else mock_value(key, gpu, number);
    }
    if (file) fclose(file);
    seen = now.st_mtim;
    __sync_lock_release(&lock);
}

/* --- how every function begins: counted, and failed where the test said so --- */
static void note(const char *key, int gpu) {
    static volatile int lock;
    while (__sync_lock_test_and_set(&lock, 1)) {}
    int i = 0;
    while (i < n_calls && (strcmp(calls[i].key, key) || calls[i].gpu != gpu)) i++;
    if (i == n_calls) {
        snprintf(calls[i].key, 64, "%s", key);
        calls[i].gpu = gpu;
        n_calls++;
    }
    calls[i].value++;
    __sync_lock_release(&lock);
}
static int fate(const char *key, int gpu) {
    for (int i = n_failures - 1; i >= 0; i--)
        if ((failures[i].gpu < 0 || failures[i].gpu == gpu) &&
            (!strcmp(failures[i].key, key) || !strcmp(failures[i].key, "*")))
            return (int)failures[i].value;
    return -1;
}
static int begin(const char *name, Device device, const char *args) {
    int gpu = device ? device->index : -1;
    char key[64];
    snprintf(key, 64, "%s%s", name, args);
    reload();
    note(key, gpu);
    if (!initialized) return UNINITIALIZED;
    int whole = device >= devices && device < devices + count, slice = device >= slices && device < slices + 4 * GPUS;
    if (device && !whole && !slice) return INVALID_ARGUMENT;
    int code = fate(key, gpu);
    if (code < 0) code = fate(name, gpu);
    if (code == 1000) {
        hanging = 1;
        while (hanging > 0) usleep(1000);
        return OK;
    }
    return code < 0 ? OK : code;
}
static ull value(const char *key, Device device, ull otherwise) {
    for (int i = n_values - 1; i >= 0; i--)
        if (!strcmp(values[i].key, key) && (values[i].gpu < 0 || values[i].gpu == device->index)) return values[i].value;
    return otherwise;
}
#define BEGIN(name, device, ...)                    \
    char args[32] = "";                             \
    snprintf(args, sizeof args, "" __VA_ARGS__);    \
    int code = begin(name, device, args);           \
    if (code) return code

/* --- nvml.h --- */
int nvmlInit_v2(void) {
    int code = fate("nvmlInit_v2", -1);
    if (code > 0) return code;
    reload();
    initialized++;
    return OK;
}
int nvmlShutdown(void) { return initialized ? (initialized--, OK) : UNINITIALIZED; }
int nvmlSystemGetDriverVersion(char *text, uint length) {
    BEGIN("nvmlSystemGetDriverVersion", NULL);
    if (length < 80) return INSUFFICIENT_SIZE;
    return snprintf(text, length, "580.1.2") < 0;
}
int nvmlDeviceGetCount_v2(uint *n) { BEGIN("nvmlDeviceGetCount_v2", NULL); *n = (uint)count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(uint index, Device *device) {
    if ((int)index >= count) return INVALID_ARGUMENT;
    BEGIN("nvmlDeviceGetHandleByIndex_v2", &devices[index]);
    *device = &devices[index];
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device d, uint *n) {
    BEGIN("nvmlDeviceGetMaxMigDeviceCount", d);
    *n = value("slices", d, 0) ? 4 : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device d, uint index, Device *out) {
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex", d, ".%u", index);
    if (index >= value("slices", d, 0)) return NOT_FOUND;
    *out = &slices[4 * d->index + (int)index];
    (*out)->index = GPUS + 4 * d->index + (int)index;
    return OK;
}
static int text(const char *name, Device device, char *out, uint length, uint least, const char *format) {
    BEGIN(name, device);
    if (length < least) return INSUFFICIENT_SIZE;
    snprintf(out, length, format, device->index);
    return OK;
}
int nvmlDeviceGetUUID(Device d, char *t, uint n) {
    if (d >= slices && d < slices + 4 * GPUS) return snprintf(t, n, "MIG-%d-%d", (d->index - GPUS) / 4, d->index % 4) < 0;
    return text("nvmlDeviceGetUUID", d, t, n, 96, "GPU-0000-%d");
}
int nvmlDeviceGetSerial(Device d, char *t, uint n) { return text("nvmlDeviceGetSerial", d, t, n, 30, "16540000%d"); }
int nvmlDeviceGetName(Device d, char *t, uint n) { return text("nvmlDeviceGetName", d, t, n, 96, "NVIDIA \"H200\""); }
int nvmlDeviceGetVbiosVersion(Device d, char *t, uint n) { return text("nvmlDeviceGetVbiosVersion", d, t, n, 32, "96.00.0%d"); }
int nvmlDeviceGetPciInfo_v3(Device d, PciInfo *info) {
    BEGIN("nvmlDeviceGetPciInfo_v3", d);
    memset(info, 0, sizeof *info);
    info->bus = 0x3a + (uint)d->index;
    snprintf(info->busIdLegacy, 16, "0000:%02X:00.0", info->bus);
    snprintf(info->busId, 32, "00000000:%02X:00.0", info->bus);
    return OK;
}
#define NUMBER(name, type, key, otherwise) \
    int name(Device d, type *out) { BEGIN(#name, d); *out = (type)value(key, d, otherwise); return OK; }
#define NUMBER1(name, type, key, otherwise)                                     \
    int name(Device d, uint a, type *out) {                                     \
        BEGIN(#name, d, ".%u", a);                                              \
        char full[64];                                                          \
        snprintf(full, 64, key ".%u", a);                                       \
        *out = (type)value(full, d, otherwise);                                 \
        return OK;                                                              \
    }
NUMBER1(nvmlDeviceGetTemperature, uint, "temperature", 40)
NUMBER(nvmlDeviceGetPowerUsage, uint, "power", 75123)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, uint, "limit", 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, uint, "defaultlimit", 700000)
NUMBER1(nvmlDeviceGetTemperatureThreshold, uint, "threshold", 87 + a)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, ull, "energy", 5000000000123ull)
NUMBER1(nvmlDeviceGetClockInfo, uint, "clock", a == 1 ? 1980 : a == 2 ? 3201 : 7)
NUMBER1(nvmlDeviceGetMaxClockInfo, uint, "maxclock", a == 1 ? 1981 : a == 2 ? 3202 : 7)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, uint, "width", 8)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, uint, "maxwidth", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, uint, "generation", 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, uint, "maxgeneration", 5)
NUMBER(nvmlDeviceGetPcieReplayCounter, uint, "replay", 3)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, ull, "reasons", 0x44)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, ull, "supported", 0x1ff)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, ull, "reasons", 0x44)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, ull, "supported", 0x1ff)
int nvmlDeviceGetMemoryInfo_v2(Device d, MemoryV2 *m) {
    BEGIN("nvmlDeviceGetMemoryInfo_v2", d);
    if (m->version != (sizeof(MemoryV2) | 2 << 24)) return VERSION_MISMATCH;
    m->total = 150ull << 30;
    m->reserved = 1ull << 30;
    m->used = value("used", d, 50ull << 30);
    m->free = m->total - m->reserved - m->used;
    return OK;
}
#endif
int nvmlDeviceGetMemoryInfo(Device d, Memory *m) {
    BEGIN("nvmlDeviceGetMemoryInfo", d);
    m->total = 150ull << 30;
    m->used = value("used", d, 50ull << 30) + (1ull << 30);
    m->free = m->total - m->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(Device d, Utilization *u) {
    BEGIN("nvmlDeviceGetUtilizationRates", d);
    u->gpu = (uint)value("utilization", d, 97);
    u->memory = 31;
    return OK;
}
int nvmlDeviceGetViolationStatus(Device d, uint policy, ViolationTime *t) {
    BEGIN("nvmlDeviceGetViolationStatus", d, ".%u", policy);
    t->referenceTime = 1;
    t->violationTime = value("violation", d, 1500000000ull + policy);
    return OK;
}
int nvmlDeviceGetMemoryErrorCounter(Device d, uint type, uint counter, uint location, ull *n) {
    BEGIN("nvmlDeviceGetMemoryErrorCounter", d, ".%u.%u.%u", type, counter, location);
    *n = 100000ull * type + 1000 * counter + 10 * location;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Device d, uint type, uint counter, ull *n) {
    BEGIN("nvmlDeviceGetTotalEccErrors", d, ".%u.%u", type, counter);
    char key[64];
    snprintf(key, 64, "ecctotal.%u.%u", type, counter);
    *n = value(key, d, 0x100000000ull + 10 * type + counter);
    return OK;
}
int nvmlDeviceGetRemappedRows(Device d, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
    BEGIN("nvmlDeviceGetRemappedRows", d);
    *corrected = 1, *uncorrected = 2;
    *pending = (uint)value("rowpending", d, 1), *failed = (uint)value("rowfailed", d, 0);
    return OK;
}
int nvmlDeviceGetFieldValues(Device d, int n, FieldValue *fields) {
    BEGIN("nvmlDeviceGetFieldValues", d);
    for (int i = 0; i < n; i++) {
        uint id = fields[i].fieldId;
        char key[64];
        snprintf(key, 64, "field.%u", id);
        note(key, d->index);
        int own = fate(key, d->index), violation = id >= 74 && id < 80;
        fields[i].nvmlReturn = own < 0 ? OK : own;
        fields[i].valueType = violation ? 3 : (int)value("fieldtype", d, 1);
        memset(&fields[i].value, own < 0 ? 0 : 0xff, sizeof(Value));
        if (own >= 0) continue;
        ull v = violation ? value("violation", d, 1500000000ull + id - 74) : value(key, d, 55);
        if (fields[i].valueType == 0) fields[i].value.d = (double)v;
        else if (fields[i].valueType == 1) fields[i].value.ui = (uint)v;
        else if (fields[i].valueType == 6) fields[i].value.us = (unsigned short)v;
        else fields[i].value.ull_ = v;
    }
    return OK;
}
int nvmlDeviceGetNvLinkState(Device d, uint link, uint *state) {
    BEGIN("nvmlDeviceGetNvLinkState", d, ".%u", link);
    if (link >= value("links", d, 4)) return INVALID_ARGUMENT;
    char key[64];
    snprintf(key, 64, "link.%u", link);
    *state = (uint)value(key, d, 1);
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(Device d, uint link, uint counter, ull *n) {
    BEGIN("nvmlDeviceGetNvLinkErrorCounter", d, ".%u.%u", link, counter);
    *n = 100 * link + counter;
    return OK;
}
static uint pid_of(Device d, uint i) { /* "pid.<i>", else numbers that follow each other */
    char key[64];
    snprintf(key, 64, "pid.%u", i);
    return (uint)value(key, d, value("firstpid", d, 1000) + i);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, uint *n, ProcessInfo *infos) {
    BEGIN("nvmlDeviceGetComputeRunningProcesses_v3", d);
    uint have = (uint)value("processes", d, 2), room = *n;
    *n = have;
    if (room < have) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < have; i++) infos[i] = (ProcessInfo){pid_of(d, i), value("processmemory", d, 1u << 20), 0, 0};
    return OK;
}
int nvmlDeviceGetProcessUtilization(Device d, ProcessUtilization *rows, uint *n, ull since) {
    BEGIN("nvmlDeviceGetProcessUtilization", d);
    uint have = (uint)value("processes", d, 2), room = *n;
    ull now = value("sampled", d, since + 1);
    if (now <= since) return NOT_FOUND;
    *n = have;
    if (room < have) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < have; i++) {
        char key[64];
        snprintf(key, 64, "sm.%u", i);
        rows[i] = (ProcessUtilization){pid_of(d, i), now, (uint)value(key, d, 10 + i), 0, 0, 0};
    }
    return OK;
}
int nvmlEventSetCreate(void **set) { BEGIN("nvmlEventSetCreate", NULL); *set = events; return OK; }
int nvmlEventSetFree(void *set) { (void)set; BEGIN("nvmlEventSetFree", NULL); return OK; }
int nvmlDeviceRegisterEvents(Device d, ull types, void *set) {
    BEGIN("nvmlDeviceRegisterEvents", d);
    if (set != events || types != 8) return INVALID_ARGUMENT;
    registered[d->index] = 1;
    return OK;
}
int nvmlEventSetWait_v2(void *set, EventData *data, uint timeout) {
    if (set != events) return INVALID_ARGUMENT;
    BEGIN("nvmlEventSetWait_v2", NULL);
    for (uint waited = 0; waited <= timeout; waited++) {
        if (next_event < n_events) {
            *data = (EventData){&devices[events[next_event].gpu], events[next_event].type, events[next_event].data, ~0u, ~0u};
            next_event++;
            return OK;
        }
        usleep(1000);
    }
    return TIMEOUT;
}
