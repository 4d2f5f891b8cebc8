#include "tools/stillmap/image/image_commands.h"

#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {
namespace {

void add_image_options(command &c, image_options &into) {
  c.texts("--parent", into.parents, "PATH",
          "a parent of an incremental image, or a folder with its parents, if they are not beside "
          "it; can be repeated");
  c.text("--key", into.key, "FILE",
         "the key of an encrypted image: a file with 32 bytes, or 64 hexadecimal digits, that only "
         "its owner may read (chmod 600)");
  c.text("--signed-by", into.signed_by, "FILE",
         "refuse images that are not signed with this key (the public half, in the same form)");
}

void add_inspect(command &group) {
  const auto [c, o] = group.add(
      "inspect", run_inspect,
      "Prints the metadata of an image, or of a set of images. That is the device, the blocks and "
      "pages, and how contents are stored. It checks the metadata, not the contents.");
  c.argument(o.file, "IMAGE", "the image, or the folder of a set").required();
  c.flag("--tree", o.tree, "print every block and the pages that are mapped in it");
  c.json(o.json);
  add_image_options(c, o.image);
}

void add_verify(command &group) {
  const auto [c, o] = group.add("verify", run_verify,
                                "Reads all of an image, or of a set, and of its parents, and "
                                "checks every byte. A damaged image ends it with exit status 6.");
  c.argument(o.file, "IMAGE", "the image, or the folder of a set").required();
  c.number("--threads", o.threads, 1u, 256u, "N",
           "threads that read (default: the number of processors)");
  c.flag("--skip-parents", o.skip_parents, "check this file only, without its parents");
  c.json(o.json);
  add_image_options(c, o.image);
}

void add_diff(command &group) {
  const auto [c, o] = group.add("diff", run_diff,
                                "Prints the address ranges at which two images differ. Exit status "
                                "0: nowhere; 6: somewhere.");
  c.argument(o.first, "FIRST", "an image").required();
  c.argument(o.second, "SECOND", "another image").required();
  c.json(o.json);
  add_image_options(c, o.image);
}

void add_flatten(command &group) {
  const auto [c, o] =
      group.add("flatten", run_flatten,
                "Writes an incremental image and its parents as one image without a parent. With "
                "--key the new image is encrypted with the same key.");
  c.argument(o.from, "IMAGE", "the image").required();
  c.argument(o.to, "NEW", "the image to write").required();
  c.text("--compress", o.compress, "none|lz4|zstd", "compress chunks that get smaller by it");
  c.flag(
      "--replace", o.replace,
      "overwrite NEW if it exists; NEW may be IMAGE itself, which then needs no parent any more");
  c.flag("--force", o.force,
         "even if other images in its folder build on NEW, which cannot be read then")
      .with("--replace");
  c.json(o.json);
  add_image_options(c, o.image);
}

void add_image_list(command &group) {
  const auto [c, o] = group.add(
      "list", run_image_list,
      "Lists the images in a folder, with their parents. These are the files *.smi in it and in "
      "folders directly in it, which hold sets. It reads their first blocks only, and needs no "
      "key.");
  c.argument(o.folder, "FOLDER", "the folder (default: the current one, or that of --children)");
  c.text("--children", o.children_of, "IMAGE",
         "only those that need this image, or this set, to be read");
  c.json(o.json);
}

void add_prune(command &group) {
  const auto [c, o] = group.add(
      "prune", run_prune,
      "Removes all but the newest images and sets of a folder, and what these build on. A set is a "
      "folder in it. Children go before their parents. Files that are no images, or cannot be "
      "read, stay, and so does what a symbolic link leads to.");
  c.argument(o.folder, "FOLDER", "the folder").required();
  c.number("--keep", o.keep, std::uint64_t{1}, std::uint64_t{1} << 32, "N",
           "how many of the newest stay, by the time of their contents")
      .required();
  c.flag("--dry-run", o.dry_run, "say what would be removed, and remove nothing");
  c.json(o.json);
}

void add_restore(command &group) {
  const auto [c, o] =
      group.add("restore", run_restore,
                "Restores an image into this process, and compares every byte. This shows that the "
                "image can be restored here. With --send-to the memory is then handed to a process "
                "that waits for it (stillmap task handoff receive).");
  c.argument(o.file, "IMAGE", "the image").required();
  add_tag_option(c, o.tags, "restore this tag only; can be repeated");
  c.flag("--relocate", o.relocate,
         "restore at other addresses: for memory without pointers into itself");
  c.text("--send-to", o.send_to, "SOCKET", "hand the memory to the process that listens there");
  add_timeout_option(c, o.timeout, "how long to wait for that process (default: 30)")
      .with("--send-to");
  c.json(o.json);
  add_image_options(c, o.image);
  add_driver_options(c, o.driver);
}

}  // namespace

void add_image_commands(command &root) {
  command &group =
      root.add("image", "Images of device memory: list, check, restore and remove them.");
  add_inspect(group);
  add_verify(group);
  add_diff(group);
  add_flatten(group);
  add_image_list(group);
  add_prune(group);
  add_restore(group);
}

}  // namespace stillmap::tool
