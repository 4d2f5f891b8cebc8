// Suspend and resume, by tag or all.
#include "stillmap/checkpoint/suspend/suspender.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

using checkpoint::suspended_tag;

const char *name_of_store(checkpoint::backing_store store) {
  switch (store) {
    case checkpoint::backing_store::pinned_host:
      return "pinned_host";
    case checkpoint::backing_store::file:
      return "file";
    case checkpoint::backing_store::discard:
      return "discard";
  }
  return "";
}

// Every tag with mapped memory of this process's own.
std::set<std::string> mapped_tags(const device &d) {
  std::set<std::string> tags;
  for (const block_record &b : d.space().blocks()) {
    if (b.tag.empty() || b.mapped_bytes == 0 || checkpoint::find_published(d, b)) continue;
    tags.insert(b.tag);
  }
  return tags;
}

struct totals {
  stillmap_suspended sums{};
  void add(const suspended_tag &tag) {
    ++sums.tags;
    sums.places += tag.places;
    sums.bytes += tag.bytes;
    sums.released_bytes += tag.released.bytes();
  }
};

result<totals> suspend_tags(checkpoint::suspender &s, const std::vector<std::string> &tags,
                            const checkpoint::suspend_options &options) {
  totals all;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    auto done = s.suspend(tags[i], options);
    if (done) {
      all.add(*done);
      continue;
    }
    for (std::size_t back = i; back-- > 0;) {
      if (const auto resumed = s.resume(tags[back]); !resumed) {
        report_background_error(resumed.error().about(tags[back]));
      }
    }
    return tl::unexpected(done.error().about(tags[i]));
  }
  return all;
}

template <class Act>
stillmap_status with_suspender(const char *operation, const stillmap_suspender *handle,
                               Act act) noexcept {
  return enter(operation, [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(suspender_object *const s, find_suspender(handle));
    return act(*s);
  });
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_suspender_create(stillmap_device *device,
                                          const stillmap_suspender_options *options,
                                          stillmap_suspender **suspender) noexcept {
  return create("stillmap_suspender_create", handle_kind::suspender, suspender,
                [&]() -> result<std::unique_ptr<suspender_object>> {
                  STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
                  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
                  checkpoint::suspender_options with;
                  with.keep_pinned = o.keep_pinned_bytes;
                  constexpr std::size_t most_streams = 1024;
                  if (o.streams > most_streams) {
                    return make_error(errc::invalid_argument, "too many streams", o.streams,
                                      most_streams, error_unit::items);
                  }
                  if (o.streams != 0) with.streams = o.streams;
                  auto made = std::unique_ptr<suspender_object>(new suspender_object{*d, {}});
                  STILLMAP_ASSIGN_OR_RETURN(made->suspender,
                                            checkpoint::suspender::create(*d, with));
                  return made;
                });
}

stillmap_status stillmap_suspender_destroy(stillmap_suspender *suspender) noexcept {
  return destroy<suspender_object>("stillmap_suspender_destroy", suspender, handle_kind::suspender);
}

stillmap_status stillmap_suspender_suspend(stillmap_suspender *suspender, const char *tag,
                                           const stillmap_suspend_options *options,
                                           stillmap_suspended *done) noexcept {
  return with_suspender(
      "stillmap_suspender_suspend", suspender, [&](suspender_object &s) -> status {
        STILLMAP_RETURN_IF_ERROR(check_optional_struct(done));
        STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
        STILLMAP_RETURN_IF_ERROR(
            check_choice(o.store, STILLMAP_STORE_DISCARD, "no such stillmap_store"));
        checkpoint::suspend_options with;
        with.store = static_cast<checkpoint::backing_store>(o.store);
        with.directory = text_of(o.directory);
        with.imports = o.imports != 0;
        std::vector<std::string> tags;
        if (tag != nullptr) {
          tags.emplace_back(tag);
        } else {
          const auto all = mapped_tags(s.device);
          tags.assign(all.begin(), all.end());
          if (tags.empty()) {
            return make_error(errc::invalid_argument, "no tag of the process has mapped memory");
          }
        }
        STILLMAP_ASSIGN_OR_RETURN(const totals all, suspend_tags(*s.suspender, tags, with));
        write_struct(done, all.sums);
        return {};
      });
}

stillmap_status stillmap_suspender_resume(stillmap_suspender *suspender, const char *tag,
                                          stillmap_suspended *done) noexcept {
  return with_suspender("stillmap_suspender_resume", suspender, [&](suspender_object &s) -> status {
    STILLMAP_RETURN_IF_ERROR(check_optional_struct(done));
    std::vector<std::string> tags;
    if (tag != nullptr) {
      tags.emplace_back(tag);
    } else {
      for (auto &each : s.suspender->suspended()) tags.push_back(each.tag);
      if (tags.empty()) {
        return make_error(errc::invalid_argument, "no tag is suspended");
      }
    }
    totals all;
    for (const std::string &each : tags) {
      auto resumed = s.suspender->resume(each);
      if (!resumed) return tl::unexpected(resumed.error().about(each));
      all.add(*resumed);
    }
    write_struct(done, all.sums);
    return {};
  });
}

stillmap_status stillmap_suspender_forget(stillmap_suspender *suspender, const char *tag) noexcept {
  return with_suspender("stillmap_suspender_forget", suspender, [&](suspender_object &s) -> status {
    if (tag == nullptr) return missing("the tag is NULL");
    return s.suspender->forget(tag);
  });
}

stillmap_status stillmap_suspender_get_tags(stillmap_suspender *suspender, char **json) noexcept {
  clear_output(json);
  return with_suspender("stillmap_suspender_get_tags", suspender,
                        [&](suspender_object &s) -> status {
                          if (json == nullptr) return missing("the place for the text is NULL");
                          json_writer out;
                          out.begin_array();
                          for (const suspended_tag &each : s.suspender->suspended()) {
                            out.begin_record().field("tag", each.tag);
                            out.field("store", name_of_store(each.store));
                            out.field("places", each.places).field("bytes", each.bytes);
                            out.field("released_bytes", each.released.bytes()).end();
                          }
                          out.end();
                          STILLMAP_ASSIGN_OR_RETURN(*json, owned_text(out.text()));
                          return {};
                        });
}
