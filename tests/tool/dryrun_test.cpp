// stillmap dryrun: finds the command hostcuda and passes on the arguments and the exit status.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/tool/command_test.h"
#include "tools/stillmap/cli/commands.h"

namespace stillmap::testing {
namespace {

namespace fs = std::filesystem;

class dryrun : public command_test {
 protected:
  // A hostcuda that prints its name and arguments, one to a line, and ends with status 6.
  static void write_hostcuda(const fs::path &at, const std::string &name) {
    fs::create_directories(at.parent_path());
    std::ofstream(at) << "#!/bin/sh\necho " << name
                      << "\nfor word; do echo \"[$word]\"; done\nexit 6\n";
    fs::permissions(at, fs::perms::owner_all);
  }
  std::string path_with(const fs::path &at) const {
    return "PATH='" + at.string() + "':/usr/bin:/bin";
  }
};

TEST_F(dryrun, passes_on_arguments_and_status) {
  write_hostcuda(folder_ / "path/hostcuda", "path");
  const std::string path = path_with(folder_ / "path");
  const ran r =
      run("dryrun --gpu a100 --allocator native --allocator=stillmap --find-least --json "
          "--memory 24GiB python3 'my train.py' --gpu mine --help",
          path);
  EXPECT_EQ(r.status, 6) << r.err;
  EXPECT_EQ(r.out,
            "path\n[dryrun]\n[--gpu=a100]\n[--allocator=native]\n[--allocator=stillmap]\n"
            "[--find-least]\n[--json]\n[--memory=24GiB]\n[--]\n[python3]\n[my train.py]\n[--gpu]\n"
            "[mine]\n[--help]\n");
  EXPECT_EQ(run("dryrun -- python3 --json", path).out,
            "path\n[dryrun]\n[--]\n[python3]\n[--json]\n");
}

TEST_F(dryrun, prefers_what_is_installed_with_it) {
  const fs::path prefix = folder_ / "prefix";
  fs::create_directories(prefix / "bin");
  fs::copy_file(program(), prefix / "bin/stillmap");
  write_hostcuda(folder_ / "path/hostcuda", "path");
  const auto found = [&] {
    const fs::path out = folder_ / "found";
    const std::string line = "env " + path_with(folder_ / "path") + " '" +
                             (prefix / "bin/stillmap").string() + "' dryrun true >'" +
                             out.string() + "'";
    EXPECT_NE(std::system(line.c_str()), -1);
    const std::string text = content(out);
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(found(), "path");
  write_hostcuda(prefix / "lib/stillmap/hostcuda/hostcuda", "libraries");
  EXPECT_EQ(found(), "libraries");
  write_hostcuda(prefix / "bin/hostcuda", "beside");
  EXPECT_EQ(found(), "beside");
}

// A Python package without a command in PATH: python3 runs it.
TEST_F(dryrun, finds_the_python_package) {
  const fs::path bin = folder_ / "bin";
  fs::create_directories(bin);
  std::ofstream(bin / "python3") << "#!/bin/sh\n[ $# = 2 ] && exit 0\nshift 2\n"
                                    "for word; do echo \"[$word]\"; done\nexit 4\n";
  fs::permissions(bin / "python3", fs::perms::owner_all);
  const ran r = run("dryrun --gpus 2 ./train", "PATH='" + bin.string() + "'");
  EXPECT_EQ(r.status, 4) << r.err;
  EXPECT_EQ(r.out, "[dryrun]\n[--gpus=2]\n[--]\n[./train]\n");
}

// What pip installs: the command in the package stillmap, and hostcuda's package beside it.
TEST_F(dryrun, finds_the_package_that_is_installed_beside_it) {
  const fs::path packages = folder_ / "site packages";
  fs::create_directories(packages / "stillmap/bin");
  fs::create_directories(packages / "stillmap_hostcuda");
  fs::copy_file(program(), packages / "stillmap/bin/stillmap");
  std::ofstream(packages / "stillmap/__init__.py");
  std::ofstream(packages / "stillmap_hostcuda/__init__.py");
  std::ofstream(packages / "stillmap_hostcuda/launcher.py")
      << "import sys\ndef main():\n  print(sys.argv[1:])\n  return 5\n";
  const fs::path out = folder_ / "said";
  const std::string line = "env -u PYTHONPATH '" + (packages / "stillmap/bin/stillmap").string() +
                           "' dryrun --gpus 2 ./train >'" + out.string() + "'";
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 5);
  EXPECT_EQ(content(out), "['dryrun', '--gpus=2', '--', './train']\n");
}

// STILLMAP_DRIVER=host with both packages installed.
TEST_F(dryrun, and_so_is_the_driver_in_it) {
  if (!on_hostcuda()) GTEST_SKIP() << "about hostcuda";
  const fs::path library = folder_ / "site/stillmap_hostcuda/lib/libcuda.so.1";
  fs::create_directories(folder_ / "site/stillmap/bin");
  fs::create_directories(library.parent_path());
  fs::copy_file(program(), folder_ / "site/stillmap/bin/stillmap");
  fs::copy_file(driver().path(), library);
  const fs::path out = folder_ / "said";
  const std::string line =
      "env -u STILLMAP_HOSTCUDA -u RUNFILES_DIR STILLMAP_DRIVER=host STILLMAP_VERBOSE=1 '" +
      (folder_ / "site/stillmap/bin/stillmap").string() + "' doctor >'" + out.string() + "' 2>&1";
  // Where it is in no package, that folder is somebody else's.
  EXPECT_NE(std::system(line.c_str()), 0) << content(out);
  EXPECT_EQ(content(out).find("stillmap_hostcuda"), std::string::npos) << content(out);
  std::ofstream(folder_ / "site/stillmap/__init__.py");
  EXPECT_EQ(std::system(line.c_str()), 0) << content(out);
  EXPECT_NE(content(out).find("stillmap_hostcuda/lib/libcuda.so.1: loaded"), std::string::npos)
      << content(out);
}

TEST_F(dryrun, says_what_to_install) {
  const ran r = run("dryrun python3 train.py", "PATH=/nonexistent");
  EXPECT_EQ(r.status, 3);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("hostcuda/python/wheel.sh makes the package: pip install out/wheel/"),
            std::string::npos)
      << r.err;
  expect_usage("dryrun", "PROGRAM is missing");
  expect_usage("dryrun --gpuz h200 true", "did you mean '--gpu'");
}

TEST_F(dryrun, is_described_as_the_other_commands) {
  EXPECT_NE(run("--help").out.find("dryrun"), std::string::npos);
  const ran r = run("dryrun --help");
  EXPECT_EQ(r.status, 0);
  for (const char *part :
       {"Usage: stillmap dryrun [OPTIONS] PROGRAM...", "--find-batch VAR", "stillmap-hostcuda"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
  EXPECT_NE(run("completion bash").out.find("--find-least"), std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
