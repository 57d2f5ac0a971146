#!/usr/bin/env python3
"""Makes src/kernels/convert/grid_tables.c: the points of the grids that the IQ1, IQ2 and IQ3 types number.

    python3 tools/grid_tables.py > src/kernels/convert/grid_tables.c

A grid is a list that its authors chose by training; no formula gives it.  The points are read from the `gguf` Python
package (pip install gguf==0.19.0; class names as below) and written as loam keeps them: the place of each element among
the levels of its grid, 2 bits of 8 elements or 3 bits of 4, the first element lowest.
"""
import gguf.quants as quants

GRIDS = [("iq2_xxs", quants.IQ2_XXS), ("iq2_xs", quants.IQ2_XS), ("iq2_s", quants.IQ2_S),
         ("iq1", quants.IQ1_S), ("iq3_xxs", quants.IQ3_XXS), ("iq3_s", quants.IQ3_S)]


def points(kind) -> list[int]:
    kind.init_grid()
    levels = [float(level) for level in kind.grid_map]
    bits = 2 if len(levels) <= 4 else 3
    return [sum(levels.index(float(value)) << bits * i for i, value in enumerate(point))
            for point in kind.grid.reshape(kind.grid_shape)]


def main() -> None:
    print("/* Made by tools/grid_tables.py from the points in gguf 0.19's quants.py; do not edit. */")
    print("#include \"kernels/convert/grid.h\"")
    for name, kind in GRIDS:
        numbers = points(kind)
        print(f"\nconst uint16_t grid_{name}[{len(numbers)}] = {{")
        for i in range(0, len(numbers), 16):
            print("    " + ", ".join(f"{number}" for number in numbers[i:i + 16]) + ",")
        print("};")


main()
