"""Numba's LLVM IR of a kernel as IR for the host: pointers without types, one address space, and functions in place of
what only NVVM has."""
import re

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


