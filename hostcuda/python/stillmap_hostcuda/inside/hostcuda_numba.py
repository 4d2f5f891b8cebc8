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

DRIVER = "libcuda.so.1"
HOST_FUNCTIONS = ("hostcuda_run_threads", "hostcuda_this_thread", "hostcuda_syncthreads", "hostcuda_access",
                  "hostcuda_printf")
MOST_SHARED = 227 * 1024  # bytes of dynamic shared memory that a block can have
DYNAMIC_SHARED = '@"hostcuda.dynamic_shared"'  # one for all arrays of a kernel, which are views of it

# Special registers: the index of the word in hostcuda_thread.
WORDS = {"read.ptx.sreg.%s.%s" % (name, axis): 3 * group + i
         for group, name in enumerate(("tid", "ctaid", "ntid", "nctaid")) for i, axis in enumerate("xyz")}
WORDS["dynamic_smem_size"] = 12

# What NVVM has and the host has not, as LLVM IR. The names of Numba have "llvm.nvvm." in place of "hostcuda.".
SUPPORT = """
declare i32 @hostcuda_run_threads(ptr, ptr)
declare ptr @hostcuda_this_thread()
declare i32 @hostcuda_syncthreads(i32, ptr, ptr)
declare i32 @hostcuda_printf(ptr, ptr)
declare ptr @hostcuda_access(i64, i64, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
define internal i32 @"hostcuda.read.ptx.sreg.warpsize"() { ret i32 32 }
define internal i32 @"hostcuda.read.ptx.sreg.laneid"() {
  %x = call i32 @"hostcuda.read.ptx.sreg.tid.x"()
  %y = call i32 @"hostcuda.read.ptx.sreg.tid.y"()
  %z = call i32 @"hostcuda.read.ptx.sreg.tid.z"()
  %nx = call i32 @"hostcuda.read.ptx.sreg.ntid.x"()
  %ny = call i32 @"hostcuda.read.ptx.sreg.ntid.y"()
  %zy = mul i32 %z, %ny
  %row = add i32 %zy, %y
  %rows = mul i32 %row, %nx
  %at = add i32 %rows, %x
  %lane = urem i32 %at, 32
  ret i32 %lane
}
define internal void @"hostcuda.barrier0"() {
  call i32 @hostcuda_syncthreads(i32 0, ptr null, ptr null)
  ret void
}
define internal i32 @"hostcuda.barrier0.popc"(i32 %predicate) {
  %count = alloca i32
  call i32 @hostcuda_syncthreads(i32 %predicate, ptr %count, ptr null)
  %out = load i32, ptr %count
  ret i32 %out
}
define internal i32 @"hostcuda.barrier0.or"(i32 %predicate) {
  %count = call i32 @"hostcuda.barrier0.popc"(i32 %predicate)
  %any = icmp ne i32 %count, 0
  %out = zext i1 %any to i32
  ret i32 %out
}
define internal i32 @"hostcuda.barrier0.and"(i32 %predicate) {
  %none = icmp eq i32 %predicate, 0
  %not = zext i1 %none to i32
  %any = call i32 @"hostcuda.barrier0.or"(i32 %not)
  %out = sub i32 1, %any
  ret i32 %out
}
define internal i32 @vprintf(ptr %format, ptr %arguments) {
  %printed = call i32 @hostcuda_printf(ptr %format, ptr %arguments)
  ret i32 %printed
}
""" + DYNAMIC_SHARED + " = internal global [%d x i8] zeroinitializer, align 128\n" % MOST_SHARED + "".join("""
define internal i32 @"hostcuda.%s"() {
  %%thread = call ptr @hostcuda_this_thread()
  %%at = getelementptr i32, ptr %%thread, i64 %d
  %%word = load i32, ptr %%at
  ret i32 %%word
}
""" % item for item in WORDS.items()) + "".join("""
define internal void @"hostcuda.membar.%s"() {
  fence seq_cst
  ret void
}
""" % scope for scope in ("cta", "gl", "sys")) + "".join("""
define internal {0} @"hostcuda.atomic.load.{1}"(ptr %at, {0} %value) {{
  %old = atomicrmw {2} ptr %at, {0} %value monotonic
  ret {0} %old
}}
""".format(*names) for names in (("float", "add.f32.p0f32", "fadd"), ("double", "add.f64.p0f64", "fadd"),
                                 ("i32", "inc.32.p0i32", "uinc_wrap"), ("i32", "dec.32.p0i32", "udec_wrap")))

CONVERSIONS = "".join("""
declare i{0} @llvm.fpto{1}i.sat.i{0}.{2}({3})
define internal i{0} @"hostcuda.fpto{1}i.i{0}.{3}"({3} %x) {{
  %out = call i{0} @llvm.fpto{1}i.sat.i{0}.{2}({3} %x)
  ret i{0} %out
}}
""".format(bits, sign, kind, name) for bits in (16, 32, 64) for sign in "su" for kind, name in (
    ("f32", "float"), ("f64", "double")))

# Functions of libdevice that libm does not have. The others are those of libm without "__nv_".
LIBDEVICE = "".join("""
declare {0} @llvm.{2}.{0}({0}{3})
define internal i32 @"__nv_{1}"({0} %x) {{
  %wide = call {0} @llvm.{2}.{0}({0} %x{4})
  {5}
}}
""".format(*names) for names in (
    ("i32", "popc", "ctpop", "", "", "ret i32 %wide"),
    ("i64", "popcll", "ctpop", "", "", "%out = trunc i64 %wide to i32\n  ret i32 %out"),
    ("i32", "clz", "ctlz", ", i1", ", i1 false", "ret i32 %wide"),
    ("i64", "clzll", "ctlz", ", i1", ", i1 false", "%out = trunc i64 %wide to i32\n  ret i32 %out"))) + "".join("""
declare {0} @llvm.bitreverse.{0}({0})
define internal {0} @"__nv_{1}"({0} %x) {{
  %out = call {0} @llvm.bitreverse.{0}({0} %x)
  ret {0} %out
}}
""".format(*names) for names in (("i32", "brev"), ("i64", "brevll"))) + "".join("""
declare {0} @llvm.sqrt.{2}({0})
define internal {0} @"__nv_rsqrt{1}"({0} %x) {{
  %root = call {0} @llvm.sqrt.{2}({0} %x)
  %out = fdiv {0} 1.0, %root
  ret {0} %out
}}
declare {0} @llvm.powi.{2}.i32({0}, i32)
define internal {0} @"__nv_powi{1}"({0} %x, i32 %n) {{
  %out = call {0} @llvm.powi.{2}.i32({0} %x, i32 %n)
  ret {0} %out
}}
""".format(*names) for names in (("float", "f", "f32"), ("double", "", "f64"))) + "".join("""
declare i1 @llvm.is.fpclass.{3}({0}, i32)
define internal i32 @"__nv_{1}"({0} %x) {{
  %is = call i1 @llvm.is.fpclass.{3}({0} %x, i32 {2})
  %out = zext i1 %is to i32
  ret i32 %out
}}
""".format(*names) for names in (
    ("float", "isnanf", 3, "f32"), ("double", "isnand", 3, "f64"), ("float", "isinff", 516, "f32"),
    ("double", "isinfd", 516, "f64"), ("float", "finitef", 504, "f32"), ("double", "isfinited", 504, "f64")))

DECLARED = re.compile(r'^declare [^\n]*@"?([\w.]+)"?\(', re.M)
DEFINED = re.compile(r'define internal \w+ @"?([\w.]+)"?\(')
TOKEN = re.compile(r'"[^"]*"|[()\[\]{}<>*]|\s+|[^\s()\[\]{}<>*"]+')
CLOSING = {")": "(", "]": "[", "}": "{", ">": "<"}
# The only use of PTX in Numba's IR that is replaced: how much dynamic shared memory a block has.
DYNAMIC_SIZE = re.compile(r'\basm\b[^"]*"mov\.u32 \$0, %dynamic_smem_size;", "=r"')


class Unsupported(Exception):
    """Why a kernel is not run."""


def with_opaque_pointers(text):
    """LLVM IR in the language of today's LLVM, in which `i32*` is `ptr`. Address spaces are one on the host."""
    text = re.sub(r'("[^"]*")|\baddrspace\(\d+\)\s*|(\baddrspacecast\b)',
                  lambda found: found.group(1) or ("bitcast" if found.group(2) else ""), text)
    out = []

    def skip_space(at):
        while out[at].isspace():
            at -= 1
        return at

    def start_of_type(at):
        """The index of the first token of the type that ends at `at`."""
        at = skip_space(at)
        last = out[at]
        if last not in CLOSING:
            return at - 1 if last.startswith('"') and out[at - 1] in ("%", "@") else at
        depth = 0
        while True:
            depth += (out[at] == last) - (out[at] == CLOSING[last])
            if depth == 0:
                break
            at -= 1
        return start_of_type(at - 1) if last == ")" else at  # a function's: what it returns comes first

    for token in TOKEN.findall(text):
        if token == "*":
            del out[start_of_type(len(out) - 1):]
            token = "ptr"
        out.append(token)
    return "".join(out)


def as_on_a_gpu(line):
    """An instruction whose result is not defined in LLVM for some values that a GPU computes with: it converts to the
    nearest integer, and shifts everything out."""
    convert = re.fullmatch(r'(\s*)(%\S+) = fpto([su])i (float|double) (\S+) to i(\d+)', line)
    if convert:
        space, name, sign, kind, value, bits = convert.groups()
        wide = max(int(bits), 16)  # 8 bits are the low ones of 16
        call = 'call i%d @"hostcuda.fpto%si.i%d.%s"(%s %s)' % (wide, sign, wide, kind, kind, value)
        if wide == int(bits):
            return ["%s%s = %s" % (space, name, call)]
        return ['%s%s.wide" = %s' % (space, name[:-1], call), '%s%s = trunc i16 %s.wide" to i8' % (space, name, name[:-1])]
    shift = re.fullmatch(r'(\s*)(%"[^"]*)" = (shl|lshr|ashr)(?: nuw| nsw| exact)* i(\d+) (\S+), (%\S+)', line)
    if shift:
        space, name, verb, bits, value, amount = shift.groups()
        lines = ['%s.in" = icmp ult i%s %s, %s' % (name, bits, amount, bits),
                 '%s.by" = select i1 %s.in", i%s %s, i%s %d' % (name, name, bits, amount, bits, int(bits) - 1)]
        if verb == "ashr":
            lines.append('%s" = ashr i%s %s, %s.by"' % (name, bits, value, name))
        else:
            lines += ['%s.some" = %s i%s %s, %s.by"' % (name, verb, bits, value, name),
                      '%s" = select i1 %s.in", i%s %s.some", i%s 0' % (name, name, bits, name, bits)]
        return [space + each for each in lines]
    return [line]


def for_the_host(text):
    """One module of Numba's IR without what is only for a GPU or for debuggers."""
    lines, declared = [], set()
    for line in text.splitlines():
        line = re.sub(r"(,?\s+![\w.]+ ![\w.]+)+\s*$", "", line)
        if re.match(r'\s*(!|;|target |@"llvm\.used")', line) or '@"llvm.dbg.' in line:
            continue
        line, replaced = DYNAMIC_SIZE.subn('@"hostcuda.dynamic_smem_size"', line)
        if replaced:
            declared.add('declare i32 @"hostcuda.dynamic_smem_size"()')
        ptx = re.search(r'\basm\b[^"]*"([^"]*)"', line)
        if ptx:
            raise Unsupported("it has PTX: %s" % ptx.group(1))
        for each in as_on_a_gpu(line):
            lines.append(each)
            declared.update("declare %s %s(%s)" % found for found in re.findall(
                r'call (i\d+) (@"hostcuda\.fpto[^"]*")\((\w+)', each))
    text = with_opaque_pointers("\n".join(lines)).replace('@"llvm.nvvm.', '@"hostcuda.')
    # LLVM makes a store of each element of an array, which takes minutes where there are thousands.
    text, arrays = re.subn(
        r"^(\s*)store (\[\d+ x .*\]) zeroinitializer, ptr (\S+)$",
        r"\1call void @llvm.memset.p0.i64(ptr \3, i8 0, i64 ptrtoint (ptr getelementptr (\2, ptr null, i64 1) to i64), i1 false)",
        text, flags=re.M)
    if arrays:
        declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    # An array of dynamic shared memory has no size of its own.
    for name in re.findall(r'^(@"[^"]*") = external global \[0 x .*$', text, re.M):
        text = re.sub(r'^%s = .*$' % re.escape(name), "", text, flags=re.M).replace(name, DYNAMIC_SHARED)
        declared.add("%s = external global [%d x i8], align 128" % (DYNAMIC_SHARED, MOST_SHARED))
    return "\n".join([text, *sorted(declared)])


def with_support(text):
    """The module with the functions of SUPPORT and LIBDEVICE in place of their declarations."""
    support = SUPPORT + CONVERSIONS + LIBDEVICE
    text = re.sub(r"^@hostcuda\.dynamic_shared = .*$", "", text, flags=re.M)
    for name in DEFINED.findall(support):
        text = re.sub(r'^declare [^\n]*@"?%s"?\(.*$' % re.escape(name), "", text, flags=re.M)
    lines = []
    there = set(DECLARED.findall(text))
    for line in support.splitlines():
        declared = DECLARED.findall(line)
        if not there.issuperset(declared) or not declared:
            lines.append(line)
        there.update(declared)
    return text + "\n".join(lines) + "\n"


def launcher(entry, types, arrays):
    """The IR of the host function of a kernel: it checks the arrays that the kernel is given, which tells hostcuda's
    oracle of them, and runs the threads."""
    lines = ['define void @"hostcuda.thread"(ptr %params) {']
    for i, kind in enumerate(types):
        lines += ["  %%s%d = getelementptr ptr, ptr %%params, i64 %d" % (i, i), "  %%p%d = load ptr, ptr %%s%d" % (i, i),
                  "  %%a%d = load %s, ptr %%p%d" % (i, kind, i)]
    arguments = ", ".join("%s %%a%d" % (kind, i) for i, kind in enumerate(types))
    lines += ['  call void @"%s"(%s)' % (entry, arguments), "  ret void", "}",
              'define void @"hostcuda.kernel"(ptr %launch) {',
              "  %where = getelementptr i8, ptr %launch, i64 24", "  %params = load ptr, ptr %where"]
    for k, (first, dimensions, writes) in enumerate(arrays):
        for i in range(first + 3, first + 5 + 2 * dimensions):  # item size, address, shape, strides
            lines += ["  %%s%d = getelementptr ptr, ptr %%params, i64 %d" % (i, i),
                      "  %%p%d = load ptr, ptr %%s%d" % (i, i), "  %%a%d = load i64, ptr %%p%d" % (i, i)]
        low, high, empty = "0", "%%a%d" % (first + 3), "false"
        for d in range(dimensions):
            shape, stride = "%%a%d" % (first + 5 + d), "%%a%d" % (first + 5 + dimensions + d)
            name = "%d.%d" % (k, d)
            lines += ["  %%n%s = sub i64 %s, 1" % (name, shape), "  %%e%s = mul i64 %%n%s, %s" % (name, name, stride),
                      "  %%m%s = call i64 @llvm.smin.i64(i64 %%e%s, i64 0)" % (name, name),
                      "  %%M%s = call i64 @llvm.smax.i64(i64 %%e%s, i64 0)" % (name, name),
                      "  %%l%s = add i64 %s, %%m%s" % (name, low, name), "  %%h%s = add i64 %s, %%M%s" % (name, high, name),
                      "  %%z%s = icmp sle i64 %s, 0" % (name, shape), "  %%o%s = or i1 %s, %%z%s" % (name, empty, name)]
            low, high, empty = "%l" + name, "%h" + name, "%o" + name
        lines += ["  br i1 %s, label %%next%d, label %%check%d" % (empty, k, k), "check%d:" % k,
                  "  %%at%d = add i64 %%a%d, %s" % (k, first + 4, low), "  %%size%d = sub i64 %s, %s" % (k, high, low),
                  "  %%ok%d = call ptr @hostcuda_access(i64 %%at%d, i64 %%size%d, i32 %d)" % (k, k, k, writes),
                  "  %%bad%d = icmp eq ptr %%ok%d, null" % (k, k),
                  "  br i1 %%bad%d, label %%end, label %%next%d" % (k, k), "next%d:" % k]
    lines += ['  call i32 @hostcuda_run_threads(ptr %launch, ptr @"hostcuda.thread")', "  br label %end", "end:",
              "  ret void", "}"]
    return "\n".join(lines) + "\n"


class Compiler:
    """Compiles kernels for the host, and keeps them: hostcuda has their addresses."""

    def __init__(self, driver):
        import llvmlite.binding as llvm
        self.llvm, self.driver, self.engines = llvm, driver, []
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
        try:
            return self.compiled(texts, entry, arrays, address_of)
        except RuntimeError as error:
            raise Unsupported("LLVM does not compile its IR: %s" % error) from error

    def compiled(self, texts, entry, arrays, address_of):
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

    def register(self, handle, address, sizes):
        # By handle: another kernel may have the name, one of Numba's cache in particular.
        status = self.driver.hostcuda_register_function(
            ctypes.c_void_p(handle), ctypes.c_void_p(address), len(sizes), (ctypes.c_size_t * len(sizes))(*sizes))
        if status:
            raise Unsupported("hostcuda_register_function returned %d" % status)


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
        self.compiler, self.lock, self.known = Compiler(driver), threading.Lock(), {}

    def register(self, kernel):
        function = kernel._codelibrary.get_cufunc()
        if id(function) not in self.known:
            with self.lock:
                if id(function) not in self.known:
                    self.known[id(function)] = function  # kept, so that no other has its id
                    self.compile(kernel, function)

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
            made = self.compiler.compile(texts, kernel.entry_name, arrays_of(kernel), address_of)
            self.compiler.register(int(function.handle), *made)
        except Unsupported as reason:
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
