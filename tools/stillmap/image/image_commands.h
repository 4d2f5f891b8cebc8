// The commands of `stillmap image`: their options, and what runs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/image/open_image.h"

namespace stillmap::tool {

struct inspect_options {
  std::string file;
  image_options image;
  bool tree = false, json = false;
};
outcome<exit_status> run_inspect(const inspect_options &o);

struct verify_options {
  std::string file;
  image_options image;
  unsigned threads = 0;
  bool skip_parents = false, json = false;
};
// exit_differs: the image is damaged.
outcome<exit_status> run_verify(const verify_options &o);

struct diff_options {
  std::string first, second;
  image_options image;
  bool json = false;
};
// exit_differs: the images differ.
outcome<exit_status> run_diff(const diff_options &o);

struct flatten_options {
  std::string from, to, compress = "none";
  image_options image;
  bool replace = false, force = false, json = false;
};
outcome<exit_status> run_flatten(const flatten_options &o);

struct image_list_options {
  std::string folder;       // empty: that of `children_of`, or the current one
  std::string children_of;  // an image, or the folder of a set; empty: list all
  bool json = false;
};
outcome<exit_status> run_image_list(const image_list_options &o);

struct prune_command_options {
  std::string folder;
  std::uint64_t keep = 0;
  bool dry_run = false, json = false;
};
outcome<exit_status> run_prune(const prune_command_options &o);

struct restore_options {
  std::string file, send_to;
  std::vector<std::string> tags;
  image_options image;
  driver_options driver;
  double timeout = 30;  // seconds
  bool relocate = false, json = false;
};
// exit_differs: the restored memory differs from the image.
outcome<exit_status> run_restore(const restore_options &o);

}  // namespace stillmap::tool
