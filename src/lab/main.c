#include "lab/cli/lab.h"

int main(int argc, char **argv) {
    const struct program program = {.name = "loam-lab",
                                    .summary = "loam, with what measures it and what it is compared with.",
                                    .commands = lab_commands(),
                                    .options = option_table,
                                    .option_count = option_table_count,
                                    .more_options = lab_options,
                                    .more_option_count = lab_option_count,
                                    .described = command_table};
    bench_replay = &lab_bench_replay;
    return command_main(&program, argc, argv);
}
