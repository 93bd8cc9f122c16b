#include "bench/pool/forked.h"

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace specfabric::bench {

Forked::Forked(Forked&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), said_(std::exchange(other.said_, -1)) {}

Forked::~Forked() {
  if (pid_ < 0) return;
  close(said_);
  SayEnd();
  waitpid(pid_, nullptr, 0);
}

void Forked::SayEnd() const { kill(pid_, SIGTERM); }

void Forked::Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

sigset_t Forked::BlockEnd() {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  return end;
}

void Forked::WriteLine(int descriptor, const std::string& text) {
  const std::string line = text + "\n";
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    Die("write");
  }
}

std::string Forked::ReadAddress() {
  std::string line;
  for (char c = 0; read(said_, &c, 1) == 1 && c != '\n';) line.push_back(c);
  if (!line.empty()) return line;
  std::fprintf(stderr, "a peer has not started\n");
  std::exit(1);
}

double Forked::CpuSeconds() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::string text;
  std::getline(file, text);
  // What follows the name in parentheses: state, ...; user and system time are fields 14 and 15 of
  // proc(5), in clock ticks.
  const size_t name = text.rfind(')');
  if (name == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name + 2), ' ');
  double user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) ||
      !absl::SimpleAtod(fields[12], &system)) {
    return 0;
  }
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace specfabric::bench
