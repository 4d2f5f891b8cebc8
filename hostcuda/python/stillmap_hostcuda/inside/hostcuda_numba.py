"""Runs the kernels of Numba on the CPU, on hostcuda.

Numba compiles a kernel to LLVM IR before NVVM makes PTX of it. This module compiles the same IR for the host with
llvmlite, which Numba needs anyway, and registers it with hostcuda as the host function of the kernel.

A kernel that uses what is not here (warps, half precision, linked CUDA C++) is not registered, and a line on stderr says why.
"""
import ctypes
import ctypes.util
import re
import sys
import threading

from hostcuda_numba_ir import HOST_FUNCTIONS, Unsupported, for_the_host, launcher, with_support

DRIVER = "libcuda.so.1"


class Compiler:
    """Compiles kernels for the host, and keeps them: hostcuda has their addresses."""

    def __init__(self, driver):
        import llvmlite.binding as llvm
        self.llvm, self.engines = llvm, []
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        self.math = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
        for name in HOST_FUNCTIONS:
            llvm.add_symbol(name, self.address(driver, name))

    @staticmethod
    def address(library, name):
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    def parse(self, text):
        try:
            module = self.llvm.parse_assembly(text)
            module.triple, module.data_layout = self.machine.triple, str(self.machine.target_data)
            return module
        except RuntimeError as error:
            why = re.search(r"error: (.*)", str(error))
            raise Unsupported("LLVM %s does not read its IR: %s" % (
                ".".join(map(str, self.llvm.llvm_version_info)), why.group(1) if why else error)) from error

    def resolve(self, module):
        """Refuses a module with functions that the host has not. LLVM would end the process for one."""
        for function in module.functions:
            name = function.name
            if not function.is_declaration or name in HOST_FUNCTIONS:
                continue
            of_libm = name.removeprefix("__nv_").removeprefix("fast_")
            if name.startswith("__nv_") and hasattr(self.math, of_libm):
                self.llvm.add_symbol(name, self.address(self.math, of_libm))
            elif not name.startswith("llvm."):
                raise Unsupported("it calls %s" % name.replace("hostcuda.", "llvm.nvvm."))

    def share_variables(self, text, entry, address_of):
        """Has the kernel use the variables in which it reports an exception (debug=True) where the driver has them."""
        def shared(found):
            self.llvm.add_symbol(found.group(1), address_of(found.group(1)))
            return '@"%s" = external global i32' % found.group(1)
        return re.sub(r'^@"(%s__\w+__)" = global i32 .*$' % re.escape(entry), shared, text, flags=re.M)

    def compile(self, texts, entry, arrays, address_of):
        """The address of the host function of the kernel `entry` of these modules, and the sizes of its parameters.
        `address_of` finds a variable of the module in the driver."""
        first, *others = [self.parse(self.share_variables(for_the_host(text), entry, address_of)) for text in texts]
        for other in others:
            first.link_in(other)
        try:
            function = first.get_function(entry)
        except NameError:
            raise Unsupported("its IR has no function of this name") from None
        types = [argument.type for argument in function.arguments]
        sizes = [self.machine.target_data.get_abi_size(kind) for kind in types]
        module = self.parse(with_support(str(first)) + launcher(entry, types, arrays))
        module.verify()
        self.resolve(module)
        passes = self.llvm.create_pass_builder(self.machine, self.llvm.create_pipeline_tuning_options(2))
        passes.getModulePassManager().run(module, passes)
        engine = self.llvm.create_mcjit_compiler(module, self.machine)
        engine.finalize_object()
        self.engines.append(engine)
        return engine.get_function_address("hostcuda.kernel"), sizes


def flat_count(kind):
    """The number of parameters that a type of LLVM becomes."""
    from llvmlite import ir
    if isinstance(kind, ir.ArrayType):
        return kind.count * flat_count(kind.element)
    if isinstance(kind, (list, tuple)):
        return sum(flat_count(part) for part in kind)
    return 1


def arrays_of(kernel):
    """(first parameter, dimensions, whether it is written) of each argument that is an array. An argument of a type
    that an extension has added hides those after it."""
    from numba.cuda import datamodel, models, types
    known = models.cuda_data_manager.chain(datamodel.default_manager)
    out, at = [], 0
    for kind in kernel.signature.args:
        try:
            count = flat_count(known.lookup(kind).get_argument_type())
        except (KeyError, NotImplementedError):
            break
        if isinstance(kind, types.Array):
            out.append((at, kind.ndim, int(kind.mutable)))
        at += count
    return out


class Registrar:
    """Registers kernels of Numba with hostcuda, each once for each context."""

    def __init__(self, driver):
        self.driver, self.compiler, self.lock, self.known = driver, Compiler(driver), threading.Lock(), {}

    def register(self, kernel):
        function = kernel._codelibrary.get_cufunc()
        if id(function) not in self.known:
            with self.lock:
                if id(function) not in self.known:
                    self.compile(kernel, function)
                    # Only now: another thread would launch what is not registered. Kept, so that no other has its id.
                    self.known[id(function)] = function

    def compile(self, kernel, function):
        from numba.cuda import gpus
        from numba.cuda.cudadrv import nvvm

        def address_of(name):
            if len(gpus) > 1:
                raise Unsupported("exceptions (debug=True) are reported in variables, which each device has of its own")
            return int(function.module.get_global_symbol(name)[0].handle)
        try:
            # Numba's own definitions of atomic operations that NVVM does not have.
            texts = [nvvm.llvm_replace(text) for text in kernel._codelibrary.llvm_strs]
            address, sizes = self.compiler.compile(texts, kernel.entry_name, arrays_of(kernel), address_of)
            # By handle: another kernel may have the name, one of Numba's cache in particular.
            status = self.driver.hostcuda_register_function(
                ctypes.c_void_p(int(function.handle)), ctypes.c_void_p(address), len(sizes),
                (ctypes.c_size_t * len(sizes))(*sizes))
            if status:
                raise Unsupported("hostcuda_register_function returned %d" % status)
        except Exception as reason:  # not only Unsupported: Numba has no interface for this, and changes
            print("hostcuda: the kernel '%s' of Numba does not run: %s" % (kernel.entry_name, reason), file=sys.stderr)


def run_on_the_host(dispatcher):
    """Has the module numba.cuda.dispatcher register each kernel with hostcuda when it is bound to a context. One of
    Numba's cache is not bound before it is launched."""
    driver = ctypes.CDLL(DRIVER)
    if not hasattr(driver, "hostcuda_run_threads"):
        return  # a GPU's driver runs kernels itself
    registrar = Registrar(driver)
    bind, launch = dispatcher._Kernel.bind, dispatcher._Kernel.launch

    def bind_and_register(kernel):
        bind(kernel)
        registrar.register(kernel)

    def register_and_launch(kernel, *arguments, **options):
        registrar.register(kernel)
        return launch(kernel, *arguments, **options)
    dispatcher._Kernel.bind, dispatcher._Kernel.launch = bind_and_register, register_and_launch
