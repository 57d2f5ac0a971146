/* accounts: computing time by owner, for turns. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "server/service_internal.h"

static bool is_active(const struct service *service, const char *owner) {
    for (size_t i = 0; i < service->running.count; i++)
        if (strcmp(service->running.jobs[i]->request.owner, owner) == 0) return true;
    return false;
}

static struct owner_account *find_account(const struct service *service, const char *owner) {
    for (size_t i = 0; i < service->accounts.count; i++)
        if (strcmp(service->accounts.items[i].owner, owner) == 0) return &service->accounts.items[i];
    return NULL;
}

/* An account that nobody uses makes room for a new one. */
static struct owner_account *new_account(struct service *service) {
    enum { ACCOUNTS_MAX = 1024 };
    for (size_t i = 0; i < service->accounts.count && service->accounts.count >= ACCOUNTS_MAX; i++)
        if (!is_active(service, service->accounts.items[i].owner)) return &service->accounts.items[i];
    struct owner_accounts *accounts = &service->accounts;
    if (!array_reserve(&accounts->items, accounts->count, &accounts->capacity, sizeof *accounts->items)) return NULL;
    return &accounts->items[accounts->count++];
}

void account_open(struct service *service, const char *owner) {
    if (is_active(service, owner)) return;
    double least = INFINITY;
    for (size_t i = 0; i < service->running.count; i++) {
        const struct owner_account *account = find_account(service, service->running.jobs[i]->request.owner);
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
