#ifndef SPECFABRIC_APP_FLAGS_H_
#define SPECFABRIC_APP_FLAGS_H_

// The flags of all roles. Only app/ reads them; everything below takes structs. Order of
// precedence: command line, SPECFABRIC_<FLAG> in the environment, --flagfile (one flag a line),
// default.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gflags/gflags_declare.h"

DECLARE_string(model);
DECLARE_string(draft_model);
DECLARE_string(target_model);
DECLARE_string(state_layers);
DECLARE_string(served_model_name);
DECLARE_string(dtype);
DECLARE_string(listen);
DECLARE_string(admin_listen);
DECLARE_string(targets);
DECLARE_string(drafts);
DECLARE_string(num_targets);
DECLARE_string(num_drafts);
DECLARE_string(gateway_admin);
DECLARE_string(target_admin);
DECLARE_string(draft_admin);
DECLARE_string(group_listen);
DECLARE_string(join);
DECLARE_string(tree);
DECLARE_bool(ahead);
DECLARE_int32(ahead_nodes);
DECLARE_int32(ahead_rows);
DECLARE_string(verification);
DECLARE_string(speculation);
DECLARE_string(draft_router);
DECLARE_string(draft_latency_warn);
DECLARE_bool(ngram_lookup);
DECLARE_string(request_verification);
DECLARE_string(sampled_tree);
DECLARE_string(sampled_draw);
DECLARE_string(rate);
DECLARE_string(workload_trace);
DECLARE_string(log_level);
DECLARE_string(prompt);
DECLARE_string(prompt_ids);
DECLARE_string(join_secret_file);
DECLARE_int32(tensor_parallel);
DECLARE_int32(pipeline_stages);
DECLARE_int32(group_processes);
DECLARE_int32(threads);
DECLARE_int32(kv_blocks);
DECLARE_int32(block_size);
DECLARE_int32(max_context);
DECLARE_int32(max_sequences);
DECLARE_int32(max_step_tokens);
DECLARE_int32(max_queue);
DECLARE_int32(draft_top_n);
DECLARE_int32(draft_rows);
DECLARE_int32(requests);
DECLARE_int32(prompt_tokens);
DECLARE_int32(output_tokens);
DECLARE_int32(max_sessions);
DECLARE_int32(max_tokens);
DECLARE_int32(top_k);
DECLARE_int32(repeat);
DECLARE_int32(up_pid);
DECLARE_int32(ready_fd);
DECLARE_double(typical_epsilon);
DECLARE_double(typical_delta);
DECLARE_double(acceptance);
DECLARE_double(sibling_acceptance);
DECLARE_double(acceptance_spread);
DECLARE_string(step_fixed);
DECLARE_string(step_weights);
DECLARE_string(step_row);
DECLARE_string(step_context);
DECLARE_string(drafter);
DECLARE_string(draft_place);
DECLARE_string(state_shape);
DECLARE_string(state_latency);
DECLARE_string(state_bandwidth);
DECLARE_string(draft_weights);
DECLARE_string(draft_row);
DECLARE_string(round_trip);
DECLARE_string(session_ttl);
DECLARE_string(max_draft_wait);
DECLARE_string(step_timeout);
DECLARE_string(group_timeout);
DECLARE_string(request_timeout);
DECLARE_string(target_wait);
DECLARE_string(stall_timeout);
DECLARE_string(cors_origins);
DECLARE_string(api_key_file);
DECLARE_string(tls_cert);
DECLARE_string(tls_key);
DECLARE_bool(access_log);
DECLARE_string(slow_request);
DECLARE_string(tool_parser);
DECLARE_string(span_file);
DECLARE_string(otlp_endpoint);
DECLARE_double(trace_sample);
DECLARE_string(dns_refresh);
DECLARE_string(drain_timeout);
DECLARE_string(spin);
DECLARE_string(simulated_rtt);
DECLARE_string(silence_timeout);
DECLARE_double(temperature);
DECLARE_double(top_p);
DECLARE_double(min_p);
DECLARE_uint64(seed);
DECLARE_bool(require_rdma);
DECLARE_bool(require_gpudirect);
DECLARE_bool(batch_invariant);
DECLARE_string(disable_features);
DECLARE_double(gpu_memory_fraction);
DECLARE_string(device);
DECLARE_bool(reference_kernels);
DECLARE_bool(ignore_eos);
DECLARE_bool(use_generation_config);
DECLARE_bool(json);
DECLARE_bool(once);
DECLARE_bool(print_pids);

namespace specfabric::app {

// Sets the role's flags from flagfile, environment and `args` (what follows the role on the command
// line). Errors: as ReadFlags (command_line.h).
absl::Status ParseFlags(absl::string_view role, const std::vector<std::string>& args);

enum class HelpScope { kCommon, kAll };

// The roles, a line each.
std::string Overview();
// A role's flags by group; of an unknown role, the overview. kCommon: at most 25, those that an
// operator sets.
std::string Help(absl::string_view role, HelpScope scope);
std::vector<std::string> RoleNames();
bool IsRole(absl::string_view role);
// One line: `given` is not a role, and the role with the nearest name.
std::string NoSuchRole(absl::string_view given);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_FLAGS_H_
