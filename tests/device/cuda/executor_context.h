/* executor_context: where one of the executor's fibres goes on, on a stack of its own; of executor.cpp alone. */
#pragma once

#include <stddef.h>

#if defined(__x86_64__)
/* Saves what a call must keep on the stack, and goes on where the other stack was left. */
extern "C" void executor_switch(void **from, void *to);
__asm__(".text\n.globl executor_switch\n.type executor_switch, @function\nexecutor_switch:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
        ".size executor_switch, .-executor_switch\n");
static void *stack_prepare(char *top, void (*entry)()) {
    void **sp = (void **)(top - 16);
    *sp = (void *)entry; /* `ret` leaves the stack as after a call */
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}
struct context {
    void *sp;
};
static void context_prepare(context *c, char *stack, size_t bytes, void (*entry)()) {
    c->sp = stack_prepare(stack + bytes, entry);
}
static void context_switch(context *from, context *to) { executor_switch(&from->sp, to->sp); }
#else
#include <ucontext.h>
struct context {
    ucontext_t u;
};
static void context_prepare(context *c, char *stack, size_t bytes, void (*entry)()) {
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = bytes;
    makecontext(&c->u, entry, 0);
}
static void context_switch(context *from, context *to) { swapcontext(&from->u, &to->u); }
#endif
