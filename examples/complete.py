"""complete.py: the model goes on with a text, by loam.py, which is installed beside loam.h.

    PYTHONPATH=$(pkg-config --variable=python loam) python3 complete.py model.gguf "Once upon a time"
"""
import sys

import loam


def complete(path, text):
    with loam.Model(path) as model, model.session(context=4096) as session:
        session.generate(model.tokenize(text), max_tokens=32, hear=sys.stdout.buffer.write)


if __name__ == "__main__":
    try:
        complete(sys.argv[1], sys.argv[2])
    except loam.Error as error:
        sys.exit(str(error))
    print()
