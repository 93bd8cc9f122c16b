{{/* Names, labels, and what the roles' pods have in common. */}}

{{- define "specfabric.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 36 | trimSuffix "-" -}}
{{- end -}}

{{- define "specfabric.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else if contains (include "specfabric.name" .) .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "specfabric.name" .) | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects all pods of this release. */}}
{{- define "specfabric.selector" -}}
app.kubernetes.io/name: {{ include "specfabric.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "specfabric.labels" -}}
{{ include "specfabric.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "specfabric.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ default .Chart.AppVersion $image.tag }}{{- end -}}
{{- end -}}

{{- define "specfabric.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "specfabric.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "specfabric.joinSecretName" -}}
{{- default (printf "%s-join" (include "specfabric.fullname" .)) .Values.joinSecret.existingSecret -}}
{{- end -}}

{{- define "specfabric.joinSecretFile" -}}
/etc/specfabric/join/{{ .Values.joinSecret.key }}
{{- end -}}

{{- define "specfabric.servedModelName" -}}
{{- default .Values.target.model.name .Values.servedModelName -}}
{{- end -}}

{{/* A pool's values over the defaults, as YAML: root, pool (name). */}}
{{- define "specfabric.pool" -}}
{{- $defaults := deepCopy .root.Values.draft.defaults -}}
{{- mergeOverwrite $defaults (deepCopy (index .root.Values.draft.pools .pool)) | toYaml -}}
{{- end -}}

{{/* "true" where the role has RDMA devices: root, role. */}}
{{- define "specfabric.hasRdma" -}}
{{- $rdma := .root.Values.rdma -}}
{{- if and $rdma.enabled (or (ne .role "gateway") $rdma.gateway) -}}true{{- end -}}
{{- end -}}

{{/* Flags that the chart sets by itself, for every role. */}}
{{- define "specfabric.ownFlags" -}}
listen admin_listen ready_fd model targets drafts tensor_parallel pipeline_stages group_processes group_listen group_timeout join join_secret_file drain_timeout served_model_name require_rdma require_gpudirect flagfile
{{- end -}}

{{/* Where spans go: root, role, config (its flags go before). Rank processes have none of their own. */}}
{{- define "specfabric.tracingArgs" -}}
{{- with .root.Values.tracing -}}
{{- if and .otlpEndpoint (ne $.role "rank") }}
- --otlp_endpoint={{ .otlpEndpoint }}
{{- if eq $.role "gateway" }}
- --trace_sample={{ toJson .sample }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* What every role is given: root, role, port, config, model, targetModel (or none). */}}
{{- define "specfabric.args" -}}
{{- $values := .root.Values -}}
- {{ .role }}
{{- if .port }}
- --listen={{ $values.listenAddress }}:{{ .port }}
{{- end }}
- --admin_listen={{ $values.listenAddress | trimPrefix "[" | trimSuffix "]" }}:{{ $values.ports.admin }}
- --model=/models/{{ .model.name }}
{{- with .targetModel }}
- --target_model={{ include "specfabric.targetModelFolder" . }}
{{- end }}
- --join_secret_file={{ include "specfabric.joinSecretFile" .root }}
{{- if .port }}
- --drain_timeout={{ .config.drainTimeoutSeconds }}s
{{- end }}
{{- if and $values.rdma.required (include "specfabric.hasRdma" .) }}
- --require_rdma
{{- end }}
{{- if and $values.rdma.gpudirect (ne .role "gateway") }}
- --require_gpudirect
{{- end }}
{{- include "specfabric.tracingArgs" . }}
{{- end -}}

{{- define "specfabric.furtherArgs" -}}
{{- range $flag, $value := .flags }}
{{- /* As JSON, because a template prints large numbers as 1e+06. */}}
- {{ printf "--%s=%s" $flag (kindIs "string" $value | ternary $value (toJson $value)) | toJson }}
{{- end }}
{{- range .extraArgs }}
- {{ toJson . }}
{{- end }}
{{- end -}}

{{/* root, role. A pod whose memory is to be locked by a capability has to be root's. */}}
{{- define "specfabric.podSecurityContext" -}}
{{- $context := deepCopy .root.Values.podSecurityContext -}}
{{- if and (include "specfabric.hasRdma" .) (eq .root.Values.rdma.memlock "cap") -}}
{{- $_ := set $context "runAsNonRoot" false -}}
{{- $_ := set $context "runAsUser" 0 -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "specfabric.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- if and (include "specfabric.hasRdma" .) (eq .root.Values.rdma.memlock "cap") }}
  add: [IPC_LOCK]
{{- end }}
{{- end -}}

{{/* root, role, config (its extraEnv) */}}
{{- define "specfabric.env" -}}
- name: HOME
  value: /tmp
{{- if and (include "specfabric.hasRdma" .) .root.Values.rdma.netDevices }}
- name: UCX_NET_DEVICES
  value: {{ .root.Values.rdma.netDevices | quote }}
{{- end }}
{{- with .root.Values.commonEnv }}
{{ toYaml . }}
{{- end }}
{{- with .config.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where a pod may run: root, role, pool (or ""), config. */}}
{{- define "specfabric.placement" -}}
{{- with .config.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .config.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .config.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $context := . }}
{{- with .config.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := deepCopy . }}
  {{- if not $constraint.labelSelector }}
  {{- $_ := set $constraint "labelSelector" (dict "matchLabels" (include "specfabric.roleSelector" $context | fromYaml)) }}
  {{- end }}
  - {{- toYaml $constraint | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .config.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with include "specfabric.schedulerName" .config }}
schedulerName: {{ . }}
{{- end }}
{{- end -}}

{{/* Of a role's configuration. KAI and Volcano look at pods of their own schedulers alone. */}}
{{- define "specfabric.schedulerName" -}}
{{- $system := (default dict .queue).system -}}
{{- $ofQueue := dict "kai" "kai-scheduler" "volcano" "volcano" -}}
{{- default (get $ofQueue (default "none" $system)) .schedulerName -}}
{{- end -}}

{{/* Labels of what makes a role's pods: root, role, pool, group, config. Kueue and KAI queue it as a whole. */}}
{{- define "specfabric.workloadLabels" -}}
{{ include "specfabric.roleLabels" . }}
{{- include "specfabric.queueLabel" (dict "queue" .config.queue "systems" (list "kueue" "kai")) }}
{{- end -}}

{{/* queue, systems (those that are asked for) */}}
{{- define "specfabric.queueLabel" -}}
{{- with .queue -}}
{{- $keys := dict "kueue" "kueue.x-k8s.io/queue-name" "kai" "kai.scheduler/queue" -}}
{{- if has .system $.systems }}
{{ get $keys .system }}: {{ .name | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Volcano's, of pods and of LeaderWorkerSets: config. */}}
{{- define "specfabric.queueAnnotations" -}}
{{- $annotations := dict -}}
{{- with .queue -}}
{{- if eq (default "none" .system) "volcano" -}}
{{- $_ := set $annotations "scheduling.volcano.sh/queue-name" .name -}}
{{- with .podGroup -}}
{{- $_ := set $annotations "scheduling.k8s.io/group-name" . -}}
{{- $_ := set $annotations "scheduling.volcano.sh/group-name" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $annotations -}}{{- toYaml $annotations -}}{{- end -}}
{{- end -}}

{{/* root, role, pool (or ""), group (of ranks) */}}
{{- define "specfabric.roleSelector" -}}
{{ include "specfabric.selector" .root }}
{{ include "specfabric.roleName" . }}
{{- end -}}

{{- define "specfabric.roleLabels" -}}
{{ include "specfabric.labels" .root }}
{{ include "specfabric.roleName" . }}
{{- end -}}

{{- define "specfabric.roleName" -}}
app.kubernetes.io/component: {{ .role }}
{{- with .pool }}
specfabric/pool: {{ . }}
{{- end }}
{{- with .group }}
specfabric/group: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Without versions: a new one of the chart alone is no reason to restart a pod. */}}
{{- define "specfabric.podLabels" -}}
{{ include "specfabric.roleSelector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- include "specfabric.queueLabel" (dict "queue" .config.queue "systems" (list "kai")) }}
{{- end -}}

{{- define "specfabric.podAnnotations" -}}
{{- $annotations := dict "checksum/join-secret" (printf "%s/%s/%s" .root.Values.joinSecret.existingSecret .root.Values.joinSecret.key .root.Values.joinSecret.value | sha256sum) -}}
{{- if and (include "specfabric.hasRdma" .) .root.Values.rdma.networks -}}
{{- $_ := set $annotations "k8s.v1.cni.cncf.io/networks" (join "," .root.Values.rdma.networks) -}}
{{- end -}}
{{- $queue := include "specfabric.queueAnnotations" .config | fromYaml -}}
{{- toYaml (mergeOverwrite $annotations $queue (default dict .config.podAnnotations)) -}}
{{- end -}}

{{- /* Of a pool's configuration: whether its drafter reads the target's hidden states, and may share
weights of the target's checkpoint. */}}
{{- define "specfabric.readsTarget" -}}
{{- if has .drafter (list "eagle3" "dflash" "dspark" "mtp") }}true{{ end }}
{{- end }}
