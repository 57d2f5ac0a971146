/* Whether the driver compiles every kernel for this card, which it does when one of a module is first asked for. */
#include <stdio.h>
#include <string.h>

#include "card.h"
#include "platform/clock.h"

/* Kernels of a module; found counts those that are there. */
static void image_check(struct card *card, const struct cuda_image *image, size_t *found,
                        struct verdict *verdict) {
    static const char ENTRY[] = ".entry ";
    for (const char *at = strstr(image->ptx, ENTRY); at != NULL; at = strstr(at, ENTRY)) {
        char name[120];
        struct cuda_kernel kernel;
        struct error error;
        at += strlen(ENTRY);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "("), at);
        if (cuda_kernel_find(&kernel, &card->cuda->modules, name, 0, &error) == STATUS_OK)
            ++*found;
        else
            verdict_add(verdict, false, "%s", error.message);
    }
}

void bench_check(struct card *card) {
    struct verdict verdict = {.failed = false};
    size_t found = 0, modules = 0;
    const double begin = clock_seconds();
    for (size_t i = card->share; i < cuda_image_count; i += card->share_count) {
        const struct cuda_image *image = &cuda_images[i];
        if (image->capability == 90 && card->cuda->context.properties.capability != 90) continue;
        image_check(card, image, &found, &verdict);
        modules++;
    }
    verdict_add(&verdict, found > modules && modules > 0, "%zu kernels of %zu modules", found, modules);
    card_line(card, "compiling all kernels", "s", clock_seconds() - begin, 0, 0, &verdict);
}
