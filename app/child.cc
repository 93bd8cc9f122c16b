#include "app/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace specfabric::app {

namespace {

constexpr char kExitUrl[] = "specfabric/child-exit-code";
// In the child.
constexpr int kReadyFd = 3;
constexpr int kSecretFd = 4;
constexpr int kAboveChildFds = 5;

// An owned descriptor.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Fd() { Close(); }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

struct Pipe {
  Fd read, write;
};

// A pipe with descriptors above those of the child, so that moving one there overwrites no other.
absl::StatusOr<Pipe> OpenPipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  const Fd low[2] = {Fd(fds[0]), Fd(fds[1])};
  Pipe pipe = {Fd(fcntl(fds[0], F_DUPFD_CLOEXEC, kAboveChildFds)),
               Fd(fcntl(fds[1], F_DUPFD_CLOEXEC, kAboveChildFds))};
  if (pipe.read.get() < 0 || pipe.write.get() < 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  return pipe;
}

// The read end of a pipe that holds `text`, which must fit a pipe's buffer.
absl::StatusOr<Fd> PipeContaining(const std::string& text) {
  auto pipe = OpenPipe();
  if (!pipe.ok()) return pipe.status();
  if (write(pipe->write.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  return std::move(pipe->read);
}

absl::Status Ended(const std::string& role, int wait_status) {
  const int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1;
  absl::Status status = absl::AbortedError(
      WIFEXITED(wait_status)
          ? absl::StrCat("the ", role, " ended with status ", code, " before it was ready")
          : absl::StrCat("the ", role, " was ended by signal ", WTERMSIG(wait_status)));
  status.SetPayload(kExitUrl, absl::Cord(absl::StrCat(code)));
  return status;
}

// One line from the pipe; false at its end or the deadline.
bool ReadLine(int fd, base::Nanos deadline, std::string* line) {
  for (char c; base::Now() < deadline;) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, 100) <= 0) continue;
    if (read(fd, &c, 1) != 1) return false;
    if (c == '\n') return true;
    line->push_back(c);
  }
  return false;
}

absl::StatusOr<pid_t> Spawn(const std::string& role, const std::vector<std::string>& args,
                            int ready_fd, int secret_fd) {
  std::vector<std::string> words = {"specfabric", role, absl::StrCat("--ready_fd=", kReadyFd),
                                    absl::StrCat("--join_secret_file=/dev/fd/", kSecretFd)};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ready_fd, kReadyFd);
  posix_spawn_file_actions_adddup2(&actions, secret_fd, kSecretFd);
  // A group of its own: the terminal's Ctrl-C goes to `up` alone, which ends its children in order.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::InternalError(absl::StrCat("posix_spawn: ", strerror(error)));
  return pid;
}

}  // namespace

absl::StatusOr<Child> StartChild(const std::string& role, const std::vector<std::string>& args,
                                 const std::string& secret, base::Nanos timeout) {
  auto ready_pipe = OpenPipe();
  if (!ready_pipe.ok()) return ready_pipe.status();
  auto secret_pipe = PipeContaining(secret);
  if (!secret_pipe.ok()) return secret_pipe.status();
  auto pid = Spawn(role, args, ready_pipe->write.get(), secret_pipe->get());
  if (!pid.ok()) return pid.status();
  ready_pipe->write.Close();
  secret_pipe->Close();
  std::string line;
  const bool ready = ReadLine(ready_pipe->read.get(), base::Now() + timeout, &line);
  if (!ready) {
    // It has ended by itself, or is too slow and is killed after a second.
    int status = 0;
    for (int i = 0; i < 200 && waitpid(*pid, &status, WNOHANG) == 0; ++i) {
      if (i == 100) kill(*pid, SIGKILL);
      usleep(10'000);
    }
    return Ended(role, status);
  }
  const auto json = nlohmann::json::parse(line, nullptr, false);
  Child child{role, *pid, "", ""};
  if (json.is_object()) {
    child.listen = json.value("listen", "");
    child.admin = json.value("admin", "");
  }
  return child;
}

std::optional<int> ChildExitCode(const absl::Status& status) {
  const auto payload = status.GetPayload(kExitUrl);
  int code = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &code)) return std::nullopt;
  return code == 0 ? 1 : code;
}

bool EndChild(const Child& child, base::Nanos timeout) {
  kill(child.pid, SIGTERM);
  const base::Nanos deadline = base::Now() + timeout;
  int status = 0;
  while (waitpid(child.pid, &status, WNOHANG) == 0) {
    if (base::Now() > deadline) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, &status, 0);
      break;
    }
    usleep(5'000);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace specfabric::app
