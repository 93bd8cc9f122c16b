#include "tests/app/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

extern char** environ;

namespace specfabric::perftest {
namespace {

// Programs that poll for each other get little of a machine that is busy otherwise.
constexpr auto kTestTimeout = std::chrono::minutes(2);

// Polls `done` until it says so.
template <typename Done>
bool Within(std::chrono::steady_clock::duration timeout, Done done) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

int MemoryFile(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0) {
    std::perror("Program: memfd_create");
    std::abort();
  }
  return file;
}

std::string Contents(int file) {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = pread(file, part, sizeof(part), text.size())) > 0;) {
    text.append(part, got);
  }
  return text;
}

}  // namespace

Program::Program(const std::vector<std::string>& words)
    : output_(MemoryFile("output")), errors_(MemoryFile("errors")) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors_, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    std::fprintf(stderr, "Program: cannot start %s (error %d)\n", argv[0], error);
    std::abort();
  }
}

Program::~Program() {
  if (!ended_) {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_);
  close(errors_);
}

bool Program::Ended() {
  if (ended_) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  ended_ = true;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return true;
}

bool Program::AwaitError(const std::string& text) {
  const auto found = [&] { return errors().find(text) != std::string::npos; };
  return Within(kTestTimeout, [&] { return found() || Ended(); }) && found();
}

void Program::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

int Program::Wait() {
  if (Within(kTestTimeout, [&] { return Ended(); })) return status_;
  Signal(SIGKILL);
  Within(kTestTimeout, [&] { return Ended(); });
  return -SIGKILL;
}

std::string Program::output() const { return Contents(output_); }
std::string Program::errors() const { return Contents(errors_); }

}  // namespace specfabric::perftest
