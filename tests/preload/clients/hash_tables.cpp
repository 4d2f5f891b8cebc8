// A library for the test of elf_object, linked with each kind of hash table.
#include <unistd.h>

#include <cstdio>

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" __attribute__((visibility("default"))) int hash_variable;
int hash_variable = 1;
EXPORTED int hash_first() {
  return std::puts("first");
}
EXPORTED int hash_second() {
  return 2;
}
EXPORTED int hash_third() {
  return 3;
}
EXPORTED __attribute__((weak)) int hash_weak() {
  return 4;
}
extern "C" __attribute__((visibility("hidden"))) int hash_hidden() {
  return 5;
}
EXPORTED int hash_uses_hidden() {
  return hash_hidden();
}

extern "C" {
static int forty_two() {
  return 42;
}
__attribute__((used)) static int (*choose())() {
  return &forty_two;
}
}
EXPORTED __attribute__((ifunc("choose"))) int hash_indirect();

static int (*const hash_table[])() = {&::getpid, &hash_second};
EXPORTED int hash_through_table(int i) {
  return hash_table[i]();
}
