// A library that exports nothing.
static int nothing;
[[gnu::constructor, maybe_unused]] static void set() {
  nothing = 1;
}
