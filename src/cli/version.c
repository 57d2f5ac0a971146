#include "cli/version.h"

#include <sys/utsname.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/output.h"
#include "platform/cpu.h"

const char *const version_number = LOAM_VERSION;
const char *const version_commit = LOAM_COMMIT;

enum status version_command(const struct options *options, struct error *error) {
    output_text("loam %s (%s)\n", version_number, version_commit);
    if (!option_flag(options, OPTION_VERBOSE)) return output_flush(error);
    char features[128], memory[32];
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    struct utsname system = {0};
    (void)uname(&system);
    output_text("compiler   %s %s\n",
#if defined(__clang__)
                "clang", __clang_version__
#else
                "gcc", __VERSION__
#endif
    );
    output_text("system     %s %s %s\n", system.sysname, system.release, system.machine);
    output_text("processor  %s, %zu threads\n", cpu_model_name(), cpu_count());
    output_text("kernels    %s\n", cpu_mask_text(cpu_features(), features, sizeof features));
    output_text("memory     %s\n", bytes_text(bytes, memory, sizeof memory));
    output_text("presets    full\n");
    return output_flush(error);
}
