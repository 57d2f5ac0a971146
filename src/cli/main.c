#include "cli/command.h"

int main(int argc, char **argv) {
    const struct program program = {.name = "loam",
                                    .summary = "long contexts on ordinary machines.  Runs GGUF language models.",
                                    .commands = command_table,
                                    .options = option_table,
                                    .option_count = option_table_count};
    return command_main(&program, argc, argv);
}
