/* look: when a KV head looks into few chunks. */
#pragma once

/* Units by codes of their keys, where chunks have their spread (kernels/level): where a KV head has more candidates
 * than LOOK_FROM times its picks, it scores those of the best chunks alone, as many as have LOOK_TIMES its picks, and
 * of chunks that the candidates begin or end in.  Chunks are ranked as units are, by the shares of their scores. */
enum { LOOK_FROM = 64, LOOK_TIMES = 32 };
