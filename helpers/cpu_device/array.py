"""CuPy-shaped arrays of the CPU device: NumPy underneath, but - as with CuPy - never mixed with NumPy by accident."""

from __future__ import annotations

import numpy as np

from .memory import Allocation, Arena, written_mark

arena = Arena()


class _Pointer:
    """`array.data`: where the array starts."""

    def __init__(self, ptr: int):
        self.ptr = ptr


class ndarray:
    """An array in the CPU device's memory.  Create one with `asarray`, `empty`, `zeros`, …; read it with `.get()`."""

    __slots__ = ("_host", "_allocation", "__weakref__")

    def __init__(self, shape, dtype=np.float32, memptr=None, *, _host: np.ndarray | None = None, _allocation: Allocation | None = None,
                 _initialized: bool = False):
        if memptr is not None:  # cp.ndarray(shape, dtype, module.get_global("name"))
            _allocation, _host = memptr.allocation, memptr.view(shape, dtype)
        if _host is None:
            dtype = np.dtype(dtype)
            if dtype.hasobject:
                raise ValueError(f"Unsupported dtype {dtype}")
            shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            _allocation = arena.allocate(nbytes, _initialized)
            _host = np.ndarray(shape, dtype, buffer=_allocation.buffer()) if nbytes else np.empty(shape, dtype)
        self._host, self._allocation = _host, _allocation

    # --- what it looks like
    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: self._host.flags)
    _c_contiguous = property(lambda self: self._host.flags.c_contiguous)  # CuPy has it, too: quicker than flags
    T = property(lambda self: self._view(self._host.T))

    @property
    def data(self) -> _Pointer:
        return _Pointer(self._host.__array_interface__["data"][0])

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return repr(self._host)

    def __str__(self):
        return str(self._host)

    # --- to the host, explicitly
    def get(self) -> np.ndarray:
        """A copy as a NumPy array."""
        return self._host.copy()

    def item(self, *args):
        return self._host.item(*args)

    def tolist(self):
        return self._host.tolist()

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly.")

    def __float__(self):
        return float(self._host)

    def __int__(self):
        return int(self._host)

    def __bool__(self):
        return bool(self._host)

    def __index__(self):
        return self._host.__index__()

    def __dlpack__(self, **kwargs):
        self._allocation.initialized = True  # whoever gets it may write it unseen
        return self._host.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._host.__dlpack_device__()

    # --- views, copies, element access
    def _view(self, host: np.ndarray) -> "ndarray":
        return ndarray(None, _host=host, _allocation=self._allocation)

    def __getitem__(self, key):
        part = self._host[_plain(key)]
        if np.may_share_memory(part, self._host) and isinstance(part, np.ndarray):
            return self._view(part)
        return wrap(np.asarray(part))

    def __setitem__(self, key, value):
        whole = key is Ellipsis or (isinstance(key, slice) and key == slice(None))
        if whole and isinstance(value, np.ndarray) and value.shape == self.shape and value.dtype == self.dtype:
            return self.set(value)  # the one case in which CuPy takes a NumPy array
        key = _plain(key)
        self._host[key] = _plain(value, scalars_only=True)
        self._mark_written(key)

    def _mark_written(self, key=Ellipsis) -> None:
        if not self._allocation.initialized and self.size:
            arena.shadow_of(self._host)[key] = written_mark(self.itemsize)

    def set(self, value: np.ndarray) -> None:
        """Copy a NumPy array of the same shape and dtype into this one."""
        if not isinstance(value, np.ndarray) or value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError(f"set() needs a NumPy array of shape {self.shape} and dtype {self.dtype}")
        self._host[...] = value
        self._mark_written()

    def reshape(self, *shape):
        host = self._host.reshape(*shape)
        return self._view(host) if np.may_share_memory(host, self._host) else wrap(host)

    def view(self, dtype=None):
        return self._view(self._host.view(dtype) if dtype is not None else self._host)

    def ravel(self):
        return self.reshape(-1)

    def transpose(self, *axes):
        return self._view(self._host.transpose(*axes))

    def swapaxes(self, a, b):
        return self._view(self._host.swapaxes(a, b))

    def squeeze(self, axis=None):
        return self._view(self._host.squeeze(axis))

    def copy(self):
        return wrap(self._host)

    def astype(self, dtype, copy=True):
        return wrap(self._host.astype(dtype)) if copy or np.dtype(dtype) != self.dtype else self

    def fill(self, value):
        self[...] = value

    def __array_function__(self, function, types, args, kwargs):
        return _call(function, args, kwargs)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _call(getattr(ufunc, method), inputs, kwargs)


def _plain(value, scalars_only: bool = False):
    """Device arrays inside `value` as NumPy arrays; a NumPy array among them is refused, as CuPy refuses it."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray) and scalars_only and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}: move it to the device first, with cp.asarray(...)")
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(v, scalars_only) for v in value)
    return value


def _call(function, args, kwargs):
    """A NumPy function on device arrays: arguments in, results - or `out` - back on the device."""
    out = kwargs.get("out")
    result = function(*_plain(tuple(args), scalars_only=True), **{k: _plain(v, scalars_only=True) for k, v in kwargs.items()})
    if out is None:
        return wrap(result)
    for array in out if isinstance(out, tuple) else (out,):
        array._mark_written()
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def wrap(value):
    """NumPy results as device arrays (also of no dimension, as CuPy's reductions return them)."""
    if isinstance(value, tuple):
        return tuple(wrap(v) for v in value)
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        out = ndarray(value.shape, value.dtype, _initialized=True)
        out._host[...] = value
        return out
    return value


def _operator(name):
    def method(self, *others):
        others = _plain(others, scalars_only=True)
        result = getattr(self._host, name)(*others)
        return result if result is NotImplemented else wrap(result)
    method.__name__ = name
    return method


def _in_place(name):
    def method(self, other):
        getattr(self._host, name)(_plain(other, scalars_only=True))
        return self  # (nothing new is written: an element that was not, stays garbage)
    method.__name__ = name
    return method


for _name in ("add sub mul truediv floordiv mod pow matmul radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul and or xor rand ror rxor "
              "lt le gt ge eq ne neg pos abs invert").split():
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
for _name in "iadd isub imul itruediv".split():
    setattr(ndarray, f"__{_name}__", _in_place(f"__{_name}__"))
ndarray.__hash__ = None


def _reduction(name):
    def method(self, *args, **kwargs):
        return _call(getattr(self._host, name), args, kwargs)
    method.__name__ = name
    return method


for _name in ("max min sum mean std var all any argmax argmin prod cumsum cumprod round clip dot argsort nonzero take repeat flatten "
              "trace conj").split():
    setattr(ndarray, _name, _reduction(_name))


# ------------------------------------------------------------------------------------ making arrays


def asarray(a, dtype=None, order=None) -> ndarray:
    """`a` on the device: the same object if it is there already, a copy of a NumPy array or nested list otherwise."""
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == dtype else a.astype(dtype)
    if hasattr(a, "__dlpack__") and not isinstance(a, np.ndarray):  # another library's array, such as a torch tensor
        a = np.from_dlpack(a)
    return wrap(np.array(a, dtype=dtype, order=order or "C"))


def array(a, dtype=None, copy=True) -> ndarray:
    return asarray(a, dtype).copy() if isinstance(a, ndarray) else asarray(a, dtype)


def ascontiguousarray(a, dtype=None) -> ndarray:
    a = asarray(a, dtype)
    return a if a.flags.c_contiguous else wrap(np.ascontiguousarray(a._host))


def empty(shape, dtype=float) -> ndarray:
    """Memory nothing has written: full of NaN (or -1), and a kernel that reads it is told so."""
    return ndarray(shape, dtype)


def empty_like(a, dtype=None, shape=None) -> ndarray:
    return ndarray(a.shape if shape is None else shape, dtype or a.dtype)


def full(shape, fill_value, dtype=None) -> ndarray:
    out = ndarray(shape, dtype or np.asarray(fill_value).dtype, _initialized=True)
    out._host[...] = _plain(fill_value)
    return out


def zeros(shape, dtype=float) -> ndarray:
    return full(shape, 0, dtype)


def ones(shape, dtype=float) -> ndarray:
    return full(shape, 1, dtype)


def zeros_like(a, dtype=None) -> ndarray:
    return full(a.shape, 0, dtype or a.dtype)


def ones_like(a, dtype=None) -> ndarray:
    return full(a.shape, 1, dtype or a.dtype)


def full_like(a, fill_value, dtype=None) -> ndarray:
    return full(a.shape, fill_value, dtype or a.dtype)


def copyto(dst: ndarray, src, casting="same_kind", where=True) -> None:
    np.copyto(dst._host, _plain(src, scalars_only=True), casting=casting, where=_plain(where))
    if where is True:
        dst._mark_written()


def from_dlpack(array) -> ndarray:
    """A copy of another library's CPU array on the device (on a GPU, CuPy would share the memory)."""
    return wrap(np.array(np.from_dlpack(array)))


def asnumpy(a) -> np.ndarray:
    """`a` as a NumPy array, copied if it is on the device."""
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def numpy_function(name: str):
    """The NumPy function `name` for device arrays: arguments in, results back on the device."""
    function = getattr(np, name)
    if isinstance(function, type(np)):
        raise AttributeError(f"the CPU device has no module {name!r}: use np.{name} and move the result with cp.asarray(...)")
    if not callable(function) or isinstance(function, type):
        return function

    def on_device(*args, **kwargs):
        return _call(function, args, kwargs)

    on_device.__name__, on_device.__doc__ = name, function.__doc__
    return on_device
