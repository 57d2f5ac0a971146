"""complete.py: the model goes on with a text, from Python by ctypes.

    LD_LIBRARY_PATH=/usr/local/lib python3 complete.py model.gguf "Once upon a time"

An option struct says how long it is, so only the members that are used need to be declared here.
"""
import ctypes as c
import sys

loam = c.CDLL("libloam.so.0")


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 400)]


class SessionOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("context_size", c.c_uint64)]


class Prompt(c.Structure):
    _fields_ = [("sequence", c.c_void_p), ("tokens", c.POINTER(c.c_int32)), ("token_count", c.c_size_t)]


Text = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_size_t, c.POINTER(c.c_char), c.c_size_t)


class GenerateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("token_max", c.c_uint64), ("ignore_end", c.c_bool), ("top_count", c.c_size_t),
                ("context", c.c_void_p), ("text", Text)]


def check(status, error):
    if status != 0:
        sys.exit(error.message.decode())


def complete(path, text, write):
    error = Error()
    model, session, sequence = c.c_void_p(), c.c_void_p(), c.c_void_p()
    check(loam.loam_model_open(c.byref(model), path.encode(), None, c.byref(error)), error)
    data = text.encode()
    ids, count = (c.c_int32 * (len(data) + 8))(), c.c_size_t()
    check(loam.loam_tokenize(model, data, c.c_size_t(len(data)), c.c_uint(1), ids, c.c_size_t(len(ids)),
                             c.byref(count), c.byref(error)), error)
    options = SessionOptions(c.sizeof(SessionOptions), 4096)
    check(loam.loam_session_create(c.byref(session), model, c.byref(options), c.byref(error)), error)
    check(loam.loam_sequence_create(c.byref(sequence), session, None, c.byref(error)), error)
    hear = Text(lambda context, index, piece, length: write(piece[:length]) is True)
    generate = GenerateOptions(c.sizeof(GenerateOptions), 32, text=hear)
    prompt = Prompt(sequence, ids, count.value)
    check(loam.loam_generate(session, c.byref(prompt), c.c_size_t(1), c.byref(generate), c.byref(error)), error)
    loam.loam_sequence_destroy(sequence)
    loam.loam_session_destroy(session)
    loam.loam_model_close(model)


if __name__ == "__main__":
    complete(sys.argv[1], sys.argv[2], sys.stdout.buffer.write)
    print()
