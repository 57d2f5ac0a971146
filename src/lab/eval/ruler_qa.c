/* qa_1 and qa_2: one document, or two documents, among many about made-up people and towns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/ruler_internal.h"

enum { ASK_TOWN, ASK_YEAR, ASK_JOB, ASK_COUNT };

static size_t person_count(void) { return ruler_first_names.count * ruler_surnames.count; }
static size_t town_count(void) { return ruler_town_starts.count * ruler_town_ends.count; }

static void person_name(size_t index, char *target) {
    snprintf(target, RULER_ANSWER_BYTES, "%s %s", ruler_first_names.words[index / ruler_surnames.count],
             ruler_surnames.words[index % ruler_surnames.count]);
}

static void town_name(size_t index, char *target) {
    snprintf(target, RULER_ANSWER_BYTES, "%s%s", ruler_town_starts.words[index / ruler_town_ends.count],
             ruler_town_ends.words[index % ruler_town_ends.count]);
}

/* What the documents say is a function of the number of the person or town and of the sample. */
static struct random facts_of(const struct ruler_draft *draft, uint64_t index) {
    struct random copy = draft->random, facts;
    random_init(&facts, random_next(&copy) ^ (index + 1) * UINT64_C(0x9e3779b97f4a7c15));
    return facts;
}

struct person {
    char name[RULER_ANSWER_BYTES], town[RULER_ANSWER_BYTES], year[8];
    size_t town_index;
    const char *job;
};

static void describe(const struct ruler_draft *draft, size_t index, struct person *person) {
    struct random facts = facts_of(draft, index);
    person_name(index, person->name);
    person->town_index = (size_t)random_below(&facts, town_count());
    town_name(person->town_index, person->town);
    snprintf(person->year, sizeof person->year, "%d", (int)(1800 + random_below(&facts, 200)));
    person->job = ruler_jobs.words[random_below(&facts, ruler_jobs.count)];
}

static const char *town_region(const struct ruler_draft *draft, size_t index, struct random *facts) {
    *facts = facts_of(draft, person_count() + index);
    return ruler_regions.words[random_below(facts, ruler_regions.count)];
}

bool ruler_qa_draw(struct ruler_draft *draft) {
    draft->asked.person = (size_t)random_below(&draft->random, person_count());
    draft->asked.question = (size_t)random_below(&draft->random, ASK_COUNT);
    return urn_init(&draft->urn, person_count()) && urn_init(&draft->towns, town_count());
}

/* A document is a person, or, from person_count() on, a town. */
static void write_document(const struct ruler_draft *draft, size_t number, size_t document, struct text *text) {
    char digits[24];
    snprintf(digits, sizeof digits, "%zu", number);
    FILL(text, TEMPLATE_qa_heading, {"number", digits});
    text_add(text, "\n");
    if (document < person_count()) {
        struct person person;
        describe(draft, document, &person);
        FILL(text, TEMPLATE_qa_person, {"person", person.name}, {"town", person.town}, {"year", person.year},
             {"job", person.job});
    } else {
        char town[RULER_ANSWER_BYTES];
        struct random facts;
        size_t index = document - person_count();
        town_name(index, town);
        const char *region = town_region(draft, index, &facts);
        size_t noun = (size_t)random_below(&facts, ruler_nouns.count);
        size_t other = (noun + 1 + (size_t)random_below(&facts, ruler_nouns.count - 1)) % ruler_nouns.count;
        FILL(text, TEMPLATE_qa_town, {"town", town}, {"region", region}, {"noun", ruler_nouns.words[noun]},
             {"noun2", ruler_nouns.words[other]});
    }
    text_add(text, "\n\n");
}

/* The other documents: people, and in qa_2 every second one a town while there are any. */
static int64_t draw_other(struct ruler_draft *draft, size_t index, struct random *random) {
    if (draft->task == RULER_QA_2 && index % 2 == 1) {
        int64_t town = urn_draw(&draft->towns, random);
        if (town != URN_EMPTY) return (int64_t)person_count() + town;
    }
    return urn_draw(&draft->urn, random);
}

static void write_question(const struct ruler_draft *draft, const struct person *asked, struct ruler_page *page) {
    static const enum ruler_template questions[] = {TEMPLATE_question_qa_town, TEMPLATE_question_qa_year,
                                                    TEMPLATE_question_qa_job, TEMPLATE_question_qa_region};
    static const enum ruler_template prefixes[] = {TEMPLATE_prefix_qa_town, TEMPLATE_prefix_qa_year,
                                                   TEMPLATE_prefix_qa_job, TEMPLATE_prefix_qa_region};
    struct random facts;
    const char *answers[] = {asked->town, asked->year, asked->job, town_region(draft, asked->town_index, &facts)};
    size_t which = draft->task == RULER_QA_2 ? ASK_COUNT : draft->asked.question;
    FILL(&page->prompt, questions[which], {"person", asked->name});
    text_add(&page->prompt, "\n");
    FILL(&page->prompt, prefixes[which], {"person", asked->name});
    ruler_page_answer(page, answers[which]);
}

void ruler_qa_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page) {
    struct random random = draft->random;
    struct text *text = &page->prompt;
    struct person asked;
    describe(draft, draft->asked.person, &asked);
    urn_refill(&draft->urn);
    urn_refill(&draft->towns);
    urn_remove(&draft->urn, draft->asked.person);
    urn_remove(&draft->towns, asked.town_index);
    size_t place = (size_t)(draft->depth * (double)(unit_count + 1)), town_place = SIZE_MAX;
    if (draft->task == RULER_QA_2) /* between the other documents; the same gap puts the person first */
        town_place = (size_t)random_below(&random, unit_count + 1);
    ruler_fill(text, TEMPLATE_intro_qa, NULL, 0);
    text_add(text, "\n");
    for (size_t i = 0, number = 0; i <= unit_count; i++) {
        if (i == place) write_document(draft, ++number, draft->asked.person, text);
        if (i == town_place) write_document(draft, ++number, person_count() + asked.town_index, text);
        if (i == unit_count) break;
        int64_t other = draw_other(draft, i, &random);
        if (other == URN_EMPTY) {
            page->exhausted = true;
            return;
        }
        write_document(draft, ++number, (size_t)other, text);
    }
    if (!text->failed) text->bytes[--text->length] = '\0'; /* one line end before the question */
    write_question(draft, &asked, page);
    page->depth = draft->task == RULER_QA_1 ? draft->depth : -1;
}
