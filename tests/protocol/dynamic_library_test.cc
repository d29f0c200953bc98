// Tests of protocol/base/dynamic_library: what is there is called, what is not is named.
#include "protocol/base/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

TEST(DynamicLibraryTest, FindsFunctionsByName) {
  const auto library = DynamicLibrary::Open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.status();
  auto* root = library->Find<double(double)>("sqrt");
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root(4.0), 2.0);
  EXPECT_EQ(library->Find<double(double)>("no_such_function"), nullptr);
}

TEST(DynamicLibraryTest, AMissingLibraryIsNamed) {
  const auto library = DynamicLibrary::Open("libskein-none.so");
  EXPECT_TRUE(absl::IsNotFound(library.status()));
  EXPECT_THAT(std::string(StatusText(library.status())),
              ::testing::HasSubstr("libskein-none.so cannot be opened"));
}

}  // namespace
}  // namespace skein::protocol
