/* The walk over the parts of numbers; the including source defines level_sum, level_queries, level_shift, GROUPS and
 * part_add first.  sums: [GROUPS][heads], zeros. */
FLOATS_INLINE void parts_add(const struct level_layout *layout, const size_t heads, const uint8_t *codes,
                             level_queries queries, level_sum *sums) {
    for (size_t left = layout->planes; left > 0;) {
        const size_t width = level_part_width(left), words = level_part_words(layout, width);
        if (left != layout->planes) {
            FLOATS_UNROLL
            for (size_t i = 0; i < GROUPS * heads; i++) sums[i] = level_shift(sums[i], (int)width);
        }
        if (width == 4)
            part_add(4, heads, codes, words, queries, sums);
        else if (width == 2)
            part_add(2, heads, codes, words, queries, sums);
        else
            part_add(1, heads, codes, words, queries, sums);
        codes += words * LEVEL_WORD_BYTES;
        left -= width;
    }
}
