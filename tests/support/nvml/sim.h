/* The simulated driver behind the entry points: its state file, its handles, and how calls begin and end.
 *
 * The file is `nvml.json` beside this library; its format is told in plugins/devherd_gpu/nvidia/standinstate.py.
 */

#ifndef NVML_SIM_H
#define NVML_SIM_H

#include "json.h"

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

/* What a caller holds: the same for the same device as long as the library is loaded. */
typedef struct Handle {
    char gpu[96];
    char mig[96]; /* empty: the GPU itself */
    struct Handle *next;
} Handle;

typedef struct {
    const Json *gpu;
    const Json *mig; /* NULL: the GPU itself */
} Device;

extern int sim_up; /* between nvmlInit and nvmlShutdown */

/* Takes the lock and reads the file anew. Does not return while the file says that `function` hangs. An error when the
 * call fails; then the lock is not held. */
int sim_begin(const char *function, int needs_init);
/* The same for a call on a device, whose own errors and hangs count as well. */
int sim_begin_on(const char *function, const Handle *handle, Device *device);
/* Gives the lock back and passes the result on. */
int sim_end(int result);

const Json *sim_state(void);
/* What nvmlInit answers; waits while it hangs. Takes no lock. */
int sim_init(void);

/* With the lock held: */
int sim_count(void);
const Json *sim_present(int index);         /* NVML's index */
const Json *sim_gpu(const char *uuid);      /* NULL also when it is gone */
int sim_fails(const char *function, const Json *gpu); /* what a call on this GPU ends with; waits while it hangs */
Handle *sim_handle(const char *gpu, const char *mig);
int sim_mig_index(const Json *gpu, const Json *mig);
void sim_pause(void); /* gives the lock up for a moment and reads the file anew */

#endif
