/* accounts: computing time by owner, for turns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/service_internal.h"

bool account_is_active(const struct service *service, const char *owner) {
    for (size_t i = 0; i < service->running_count; i++)
        if (strcmp(service->running[i]->request.owner, owner) == 0) return true;
    return false;
}

static struct owner_account *find_account(const struct service *service, const char *owner) {
    for (size_t i = 0; i < service->account_count; i++)
        if (strcmp(service->accounts[i].owner, owner) == 0) return &service->accounts[i];
    return NULL;
}

/* An account that nobody uses makes room for a new one. */
static struct owner_account *new_account(struct service *service) {
    enum { ACCOUNTS_MAX = 1024 };
    for (size_t i = 0; i < service->account_count && service->account_count >= ACCOUNTS_MAX; i++)
        if (!account_is_active(service, service->accounts[i].owner)) return &service->accounts[i];
    if (service->account_count == service->account_capacity) {
        size_t capacity = 2 * service->account_capacity + 16;
        struct owner_account *bigger = realloc(service->accounts, capacity * sizeof *bigger);
        if (bigger == NULL) return NULL;
        service->accounts = bigger;
        service->account_capacity = capacity;
    }
    return &service->accounts[service->account_count++];
}

void account_open(struct service *service, const char *owner) {
    if (account_is_active(service, owner)) return;
    double least = INFINITY;
    for (size_t i = 0; i < service->running_count; i++) {
        const struct owner_account *account = find_account(service, service->running[i]->request.owner);
        if (account != NULL) least = fmin(least, account->seconds);
    }
    if (least == INFINITY) least = 0;
    struct owner_account *account = find_account(service, owner);
    double before = account != NULL ? account->seconds : 0;
    if (account == NULL) account = new_account(service);
    if (account == NULL) return; /* no memory: it takes turns as one who had nothing yet */
    snprintf(account->owner, sizeof account->owner, "%s", owner);
    account->seconds = fmax(least, before);
}

void account_charge(struct service *service, struct job *job, double seconds) {
    job->times.computed += seconds;
    struct owner_account *account = find_account(service, job->request.owner);
    if (account != NULL) account->seconds += seconds;
}

double account_seconds(const struct service *service, const struct job *job) {
    const struct owner_account *account = find_account(service, job->request.owner);
    return account != NULL ? account->seconds : 0;
}
