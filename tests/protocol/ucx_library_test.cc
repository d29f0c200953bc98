// UCX is opened at run time: what is missing is named with its remedy, and a crash still ends the
// process by its signal.
#include "protocol/tensor/ucx_library.h"

#include <array>
#include <cstring>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace skein::tests {
namespace {

using protocol::UcxLibrary;
using ::testing::HasSubstr;

TEST(UcxLibraryTest, AMissingLibraryIsNamedWithItsPackage) {
  const auto library = UcxLibrary::Open("libnothere.so.0", "install libucx0");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("libnothere.so.0"));
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("install libucx0"));
}

TEST(UcxLibraryTest, ALibraryOfAnotherKindIsRefused) {
  const auto library = UcxLibrary::Open("libc.so.6", "");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("ucp_config_read"));
}

TEST(UcxLibraryTest, ACrashEndsTheProcessByItsSignal) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);  // a sanitizer has its own
    const auto library = UcxLibrary::Open(UcxLibrary::kName, "");
    if (!library.ok()) ::_exit(3);
    if ((*library)->ucs_status_string(UCS_ERR_NO_MEMORY) == nullptr) ::_exit(4);
    struct sigaction handler {};
    ::sigaction(SIGSEGV, nullptr, &handler);
    if (handler.sa_handler != SIG_DFL) ::_exit(5);
    ::raise(SIGSEGV);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}

// In a process of its own, which nothing else has hooked.
TEST(UcxLibraryTest, MemoryFunctionsOfTheProcessStayAsTheyAre) {
  const pid_t child = ::fork();
  if (child == 0) {
    using Code = std::array<unsigned char, 16>;
    void* const functions[] = {::dlsym(RTLD_DEFAULT, "mmap"), ::dlsym(RTLD_DEFAULT, "munmap"),
                               ::dlsym(RTLD_DEFAULT, "madvise")};
    std::array<Code, 3> before{}, after{};
    const auto read = [&](std::array<Code, 3>& to) {
      for (size_t i = 0; i < to.size(); ++i) std::memcpy(&to[i], functions[i], sizeof(Code));
    };
    read(before);
    const auto library = UcxLibrary::Open(UcxLibrary::kName, "");
    if (!library.ok()) ::_exit(3);
    const auto context = (*library)->MakeContext(false);
    if (!context.ok()) ::_exit(4);
    read(after);
    (*library)->ucp_cleanup(*context);
    ::_exit(before == after ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace skein::tests
