{{/*
Pod templates of targets, ranks and drafts, and what makes pods of them: a StatefulSet or a Deployment, a
LeaderWorkerSet, or a role of a DisaggregatedSet, as .Values.workloads says.
*/}}

{{/* Of a pod that is a whole group, or its leader: the chart's root. */}}
{{- define "specfabric.targetPod" -}}
{{- $config := .Values.target -}}
{{- $processes := int $config.processes -}}
{{- $args := printf "- --drafts=dns:///%s-drafts:%d\n- --tensor_parallel=%d\n- --pipeline_stages=%d\n- --served_model_name=%s" (include "specfabric.fullname" .) (int .Values.ports.draft) (int $config.tensorParallel) (int $config.pipelineStages) (include "specfabric.servedModelName" .) -}}
{{- if gt $processes 1 -}}
{{- $args = printf "%s\n- --group_processes=%d\n- --group_listen=%s:%d\n- --group_timeout=%ds" $args $processes .Values.listenAddress (int .Values.ports.group) (int $config.startupSeconds) -}}
{{- end -}}
{{- include "specfabric.podTemplate" (dict "root" . "role" "target" "pool" "" "config" $config "model" $config.model "port" (int .Values.ports.target) "portName" "fabric" "args" $args "readiness" "admin") -}}
{{- end -}}

{{/* Of another pod of a group: root, group (its number, or none), leader (its host name). */}}
{{- define "specfabric.rankPod" -}}
{{- $target := .root.Values.target -}}
{{- /* They wait for the leader to drain, and end with it: a signal of their own would end the group. */ -}}
{{- $config := set (omit $target "rankFlags" "extraArgs") "flags" $target.rankFlags -}}
{{- $_ := set $config "preStopSeconds" $target.drainTimeoutSeconds -}}
{{- $join := printf "- --join=%s:%d" .leader (int .root.Values.ports.group) -}}
{{- include "specfabric.podTemplate" (dict "root" .root "role" "rank" "pool" "" "group" .group "config" $config "model" $target.model "args" $join "readiness" "admin") -}}
{{- end -}}

{{/* Of a draft: root, pool (its name), config (what it says over the defaults). */}}
{{- define "specfabric.draftPod" -}}
{{- $role := dict "root" .root "role" "draft" "pool" .pool "config" .config "model" (default dict .config.model) "port" (int .root.Values.ports.draft) "portName" "fabric" "args" "" "readiness" "admin" -}}
{{- if include "specfabric.readsTarget" .config -}}
{{- $_ := set $role "targetModel" .root.Values.target.model -}}
{{- end -}}
{{- include "specfabric.podTemplate" $role -}}
{{- end -}}

{{/* The spec of a LeaderWorkerSet of target groups: the chart's root. */}}
{{- define "specfabric.targetLeaderWorkerSpec" -}}
{{- $config := .Values.target -}}
replicas: {{ $config.replicas }}
{{ include "specfabric.groupByGroup" . }}
leaderWorkerTemplate:
  size: {{ $config.processes }}
  {{- if gt (int $config.processes) 1 }}
  # The loss of one pod ends the group.
  restartPolicy: RecreateGroupOnPodRestart
  leaderTemplate:
    {{- include "specfabric.targetPod" . | nindent 4 }}
  workerTemplate:
    {{- include "specfabric.rankPod" (dict "root" . "leader" "$(LWS_LEADER_ADDRESS)") | nindent 4 }}
  {{- else }}
  restartPolicy: None
  workerTemplate:
    {{- include "specfabric.targetPod" . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* GPUs and devices for one more are seldom free. */}}
{{- define "specfabric.groupByGroup" -}}
rolloutStrategy:
  type: RollingUpdate
  rollingUpdateConfiguration:
    maxUnavailable: 1
    maxSurge: 0
{{- end -}}
