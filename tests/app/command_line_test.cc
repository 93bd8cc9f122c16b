#include "app/command_line.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gflags/gflags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"

DEFINE_string(draft_model, "", "");
DEFINE_string(drafts, "", "");
DEFINE_string(tree, "", "");
DEFINE_int32(max_context, 0, "");
DEFINE_bool(print_pids, false, "");
DEFINE_bool(once, true, "");
DEFINE_string(of_another_role, "", "");
DEFINE_bool(switch_of_another_role, false, "");

namespace specfabric::app {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const CommandLine kLine = {"program",
                           {"draft_model", "drafts", "tree", "max_context", "print_pids", "once"}};

class CommandLineTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<std::string>> Read(const std::vector<std::string>& args) {
    return ReadFlags(kLine, args);
  }
  std::string Refusal(const std::vector<std::string>& args) {
    const auto read = Read(args);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    return std::string(read.status().message());
  }
  // A flag file of these lines.
  std::string File(const std::string& lines) {
    folder_.Write("flags", lines);
    return folder_.File("flags");
  }

  const base::TempDir folder_;
  gflags::FlagSaver saver_;
};

TEST_F(CommandLineTest, DashesInNamesAreUnderscores) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--draft-model=a-b_c", "--max-context", "7", "--print-pids",
                                 "--no-once"},
        {"-draft-model", "a-b_c", "-max_context=7", "--print-pids=true", "--noonce"},
        {"--draft_model=a-b_c", "--max_context=7", "--print_pids", "--no_once"}}) {
    gflags::FlagSaver saver;
    const auto words = Read(args);
    ASSERT_TRUE(words.ok()) << words.status();
    EXPECT_THAT(*words, ElementsAre());
    EXPECT_EQ(FLAGS_draft_model, "a-b_c") << "a value keeps its dashes";
    EXPECT_EQ(FLAGS_max_context, 7);
    EXPECT_TRUE(FLAGS_print_pids);
    EXPECT_FALSE(FLAGS_once);
  }
}

TEST_F(CommandLineTest, DashesOfSwitchesThatAreTurnedOff) {
  FLAGS_print_pids = true;
  for (const char* arg : {"--noprint_pids", "--noprint-pids", "--no-print-pids"}) {
    FLAGS_print_pids = true;
    ASSERT_TRUE(Read({arg}).ok()) << arg;
    EXPECT_FALSE(FLAGS_print_pids) << arg;
  }
}

TEST_F(CommandLineTest, DashesInAFlagFile) {
  const std::string path = File("# comment\n\n--draft-model=m\n  --max-context=9 \n--no-once\n");
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--flagfile=" + path},
                                               {"--flagfile", path},
                                               {"-flagfile", path}}) {
    gflags::FlagSaver saver;
    ASSERT_TRUE(Read(args).ok());
    EXPECT_EQ(FLAGS_draft_model, "m");
    EXPECT_EQ(FLAGS_max_context, 9);
    EXPECT_FALSE(FLAGS_once);
  }
  EXPECT_THAT(Refusal({"--flagfile=" + File("--draft-modle=m\n")}),
              HasSubstr("did you mean --draft_model?"));
}

TEST_F(CommandLineTest, CommandLineBeforeEnvironmentBeforeFile) {
  const std::string path = File("--draft-model=file\n--tree=file\n--drafts=file\n");
  setenv("SPECFABRIC_TREE", "environment", 1);
  setenv("SPECFABRIC_DRAFTS", "environment", 1);
  ASSERT_TRUE(Read({"--drafts=line", "--flagfile", path}).ok());
  unsetenv("SPECFABRIC_TREE");
  unsetenv("SPECFABRIC_DRAFTS");
  EXPECT_EQ(FLAGS_draft_model, "file");
  EXPECT_EQ(FLAGS_tree, "environment");
  EXPECT_EQ(FLAGS_drafts, "line");
}

TEST_F(CommandLineTest, TheValueOfAnotherFlagIsNoFlagFile) {
  ASSERT_TRUE(Read({"--tree", "--flagfile=/nowhere"}).ok());
  EXPECT_EQ(FLAGS_tree, "--flagfile=/nowhere");
}

TEST_F(CommandLineTest, TheNearestFlagIsSuggested) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--draft-modle=x", "did you mean --draft_model?"},
      {"--draftmodel", "did you mean --draft_model?"},
      {"--draft_models=x", "did you mean --draft_model?"},
      {"--draft=3", "did you mean --drafts?"},
      {"--max_contxt", "did you mean --max_context?"},
      {"--maxcontext=3", "did you mean --max_context?"},
      {"--max", "did you mean --max_context?"},
      {"--print_pid", "did you mean --print_pids?"},
      {"--no-print-pid", "did you mean --print_pids?"},
      {"--tre=1", "did you mean --tree?"},
      {"--flag-file=x", "did you mean --flagfile?"},
  };
  for (const auto& [given, suggestion] : cases) {
    const std::string line = Refusal({given});
    EXPECT_THAT(line, AllOf(HasSubstr("no such flag"), HasSubstr(suggestion),
                            HasSubstr("`program --help` lists the ones there are")))
        << given;
  }
  EXPECT_THAT(Refusal({"--draft-modle=x"}), ::testing::StartsWith("--draft_modle: no such flag; "));
}

TEST_F(CommandLineTest, NothingIsSuggestedWhereNothingIsNear) {
  for (const char* given : {"--gpu_memory_utilization=1", "--x", "--", "---", "--=1", "--q=1",
                            "--of-another-role=1", "--noswitch_of_another_role"}) {
    const std::string line = Refusal({given});
    EXPECT_THAT(line, HasSubstr("no such flag")) << given;
    EXPECT_THAT(line, Not(HasSubstr("did you mean"))) << given;
  }
}

TEST_F(CommandLineTest, WhatIsWrongWithAValueIsSaid) {
  EXPECT_THAT(Refusal({"--max-context=many"}),
              HasSubstr("--max_context=many: allowed are whole numbers of 32 bits"));
  EXPECT_THAT(Refusal({"--max-context"}), HasSubstr("--max_context: needs a value"));
  EXPECT_THAT(Refusal({"--print-pids=perhaps"}),
              HasSubstr("--print_pids=perhaps: allowed are true and false"));
  EXPECT_THAT(Refusal({"--max-context=99999999999"}), HasSubstr("whole numbers of 32 bits"));
  EXPECT_THAT(Refusal({"--max-context="}), HasSubstr("--max_context=: allowed are"));
  EXPECT_THAT(Refusal({"--flagfile"}), HasSubstr("needs a value"));
}

TEST_F(CommandLineTest, WordsAreThoseThatBelongToNoFlag) {
  const auto words = Read({"host", "--drafts", "2", "-", "other"});
  ASSERT_TRUE(words.ok());
  EXPECT_THAT(*words, ElementsAre("host", "-", "other"));
}

TEST(NearestTest, FindsMisspellingsAndBeginnings) {
  const std::vector<absl::string_view> roles = {"up",     "gateway",  "target", "rank",   "draft",
                                                "status", "simulate", "help",   "version"};
  EXPECT_EQ(Nearest("gatway", roles), "gateway");
  EXPECT_EQ(Nearest("darft", roles), "draft");
  EXPECT_EQ(Nearest("targets", roles), "target");
  EXPECT_EQ(Nearest("sim", roles), "simulate");
  EXPECT_EQ(Nearest("pu", roles), "up");
  EXPECT_EQ(Nearest("serve", roles), "");
  EXPECT_EQ(Nearest("", roles), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'a'), roles), "");
}

}  // namespace
}  // namespace specfabric::app
