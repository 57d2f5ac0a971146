"""loam from Python: libloam by ctypes, nothing else.

    import loam
    with loam.Model("model.gguf") as model, model.session(disk="kv") as session:
        print(session.ask("Who is the King?", [open("book.txt").read()]))

loam.h, beside this file, says what everything means.  One thread at a time for a model and all its sessions.  The
library is libloam.so.0: the one that LOAM_LIBRARY names, else beside this file or where it was installed with it, else
where the system finds it.
"""
import ctypes as c
import os

__all__ = ["Error", "Model", "Session", "version"]


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("LOAM_LIBRARY")
    places = [named] if named else [os.path.join(here, *way, "libloam.so.0") for way in
                                    ((), ("lib",), ("..", "..", "..", "lib"), ("..", "..", "..", "lib64"))]
    for place in places:
        if named or os.path.exists(place):
            return c.CDLL(place)
    return c.CDLL("libloam.so.0")


class _Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 400)]


class _Text(c.Structure):
    _fields_ = [("bytes", c.c_char_p), ("length", c.c_size_t)]


class _ModelOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("thread_count", c.c_size_t), ("cpu_mask", c.c_char_p), ("force_pre", c.c_bool),
                ("weights_host_bytes", c.c_uint64), ("device", c.c_char_p), ("device_layers", c.c_size_t),
                ("yarn_context", c.c_uint64)]


class _Question(c.Structure):
    _fields_ = [("size", c.c_size_t), ("documents", c.POINTER(_Text)), ("document_count", c.c_size_t),
                ("question", _Text), ("system", _Text), ("template_name", c.c_char_p), ("raw", c.c_bool)]


class _SessionOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("context_size", c.c_uint64), ("sequence_capacity", c.c_size_t),
                ("batch_size", c.c_size_t), ("segment_size", c.c_size_t), ("k_type", c.c_int), ("v_type", c.c_int),
                ("preset", c.c_char_p), ("set", c.c_char_p), ("keep", c.c_char_p), ("kv_device_bytes", c.c_uint64),
                ("kv_host_bytes", c.c_uint64), ("disk_directory", c.c_char_p), ("disk_bytes", c.c_uint64),
                ("document_name", c.c_char_p)]


class _Sampling(c.Structure):
    _fields_ = [("temperature", c.c_float), ("top_k", c.c_uint32), ("top_p", c.c_float), ("min_p", c.c_float),
                ("repeat_penalty", c.c_float), ("repeat_last", c.c_uint32), ("seed", c.c_uint64),
                ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float), ("biases", c.c_void_p),
                ("bias_count", c.c_size_t)]


class _Prompt(c.Structure):
    _fields_ = [("sequence", c.c_void_p), ("tokens", c.POINTER(c.c_int32)), ("token_count", c.c_size_t)]


_Hear = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_size_t, c.POINTER(c.c_char), c.c_size_t)


class _GenerateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("token_max", c.c_uint64), ("ignore_end", c.c_bool), ("top_count", c.c_size_t),
                ("context", c.c_void_p), ("text", _Hear), ("stops", c.POINTER(c.c_char_p)), ("stop_count", c.c_size_t),
                ("json_schema", c.c_char_p)]


_INTERRUPTED = 130

_lib = _load()
_lib.loam_version.restype = _lib.loam_model_name.restype = c.c_char_p
_lib.loam_model_context_length.restype = c.c_uint64
_lib.loam_sampling_default.restype = _Sampling
for _name in ("loam_model_close", "loam_session_destroy", "loam_sequence_destroy"):
    getattr(_lib, _name).restype = None
    getattr(_lib, _name).argtypes = [c.c_void_p]


class Error(Exception):
    """What the library refused; status is an exit code of the command line."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def _call(name, *arguments):
    error = _Error()
    status = getattr(_lib, name)(*arguments, c.byref(error))
    if status != 0:
        raise Error(status, error.message.decode("utf-8", "replace"))


def _bytes(text):
    return text.encode() if isinstance(text, str) else text


def _text(text):
    data = _bytes(text) if text is not None else None
    return _Text(data, len(data) if data is not None else 0)


def _options(kind, **members):
    """A struct of that kind with its size; None is its default."""
    given = {name: _bytes(value) for name, value in members.items() if value is not None}
    return kind(size=c.sizeof(kind), **given)


def version():
    return _lib.loam_version().decode()


class _Object:
    """What the library made and must be given back; also a context manager."""
    _end = None

    def __init__(self):
        self._handle = c.c_void_p()

    @property
    def handle(self):
        if not self._handle:
            raise ValueError("it is closed")
        return self._handle

    def close(self):
        if self._handle:
            getattr(_lib, self._end)(self._handle)
            self._handle = c.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Model(_Object):
    _end = "loam_model_close"

    def __init__(self, path, *, threads=None, cpu_mask=None, weights_host_bytes=None, device=None, device_layers=None,
                 yarn_context=None):
        super().__init__()
        options = _options(_ModelOptions, thread_count=threads, cpu_mask=cpu_mask, device=device,
                           weights_host_bytes=weights_host_bytes, device_layers=device_layers,
                           yarn_context=yarn_context)
        _call("loam_model_open", c.byref(self._handle), os.fsencode(path), c.byref(options))

    @property
    def name(self):
        return _lib.loam_model_name(self.handle).decode("utf-8", "replace")

    @property
    def context_length(self):
        return _lib.loam_model_context_length(self.handle)

    def _ids(self, name, bound, *arguments):
        ids, count = (c.c_int32 * bound)(), c.c_size_t()
        _call(name, self.handle, *arguments, ids, c.c_size_t(bound), c.byref(count))
        if count.value > bound:
            return self._ids(name, count.value, *arguments)
        return ids[:count.value]

    def tokenize(self, text, *, begin=True, control=False):
        data = _bytes(text)
        return self._ids("loam_tokenize", len(data) + 8, data, c.c_size_t(len(data)), c.c_uint(begin + 2 * control))

    def question_tokens(self, question, documents=(), *, system=None, template=None, raw=False):
        """Documents and a question about them in the model's chat template."""
        texts = (_Text * len(documents))(*map(_text, documents))
        asked = _options(_Question, documents=texts, document_count=len(documents), question=_text(question),
                         system=_text(system), template_name=template, raw=raw)
        return self._ids("loam_question_tokens", 1024, c.byref(asked))

    def session(self, **options):
        return Session(self, **options)


class Session(_Object):
    _end = "loam_session_destroy"

    def __init__(self, model, *, context=None, preset=None, set=None, keep=None, kv_host_bytes=None, disk=None,
                 disk_bytes=None, document_name=None):
        super().__init__()
        self.model = model
        options = _options(_SessionOptions, context_size=context, preset=preset, set=set, keep=keep, disk_bytes=disk_bytes,
                           kv_host_bytes=kv_host_bytes, document_name=document_name,
                           disk_directory=os.fsencode(disk) if disk is not None else None)
        _call("loam_session_create", c.byref(self._handle), model.handle, c.byref(options))

    def generate(self, tokens, *, max_tokens=None, temperature=0, seed=0, stops=(), json_schema=None, ignore_end=False,
                 hear=None):
        """The answer to these tokens, as bytes.  hear(piece) gets each piece as it comes; True stops."""
        sampling = _lib.loam_sampling_default()
        sampling.temperature, sampling.seed = temperature, seed
        sequence, pieces, stopped = c.c_void_p(), [], []

        def take(_context, _index, piece, length):
            pieces.append(piece[:length])
            if hear is not None and hear(pieces[-1]) is True:
                stopped.append(True)
            return bool(stopped)

        words = (c.c_char_p * len(stops))(*map(_bytes, stops))
        options = _options(_GenerateOptions, token_max=max_tokens, text=_Hear(take), stops=words, stop_count=len(stops),
                           json_schema=json_schema, ignore_end=ignore_end)
        prompt = _Prompt(None, (c.c_int32 * len(tokens))(*tokens), len(tokens))
        _call("loam_sequence_create", c.byref(sequence), self.handle, c.byref(sampling))
        try:
            prompt.sequence = sequence
            _call("loam_generate", self.handle, c.byref(prompt), c.c_size_t(1), c.byref(options))
        except Error as error:
            if not (error.status == _INTERRUPTED and stopped):
                raise
        finally:
            _lib.loam_sequence_destroy(sequence)
        return b"".join(pieces)

    def ask(self, question, documents=(), *, system=None, template=None, raw=False, **options):
        """The answer to a question about documents, as text.  options: of generate."""
        tokens = self.model.question_tokens(question, documents, system=system, template=template, raw=raw)
        return self.generate(tokens, **options).decode("utf-8", "replace")
