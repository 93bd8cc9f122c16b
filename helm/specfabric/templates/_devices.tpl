{{/*
How pods get GPUs and RDMA devices: as counts of what device plugins offer, or by claims
(dra.enabled). All take a dict: root, role, config (its resources and gpu).
*/}}

{{- define "specfabric.rdmaCount" -}}
{{- if include "specfabric.hasRdma" . -}}
{{- default (int .root.Values.rdma.count) (int .config.rdmaCount) -}}
{{- else -}}0{{- end -}}
{{- end -}}

{{/*
The claims of a role's pods, as YAML: copies (claims of a pod), name (of the template of all of them)
and devices (of one). Nothing where pods have no devices, or have them from device plugins. GPUs and
RDMA devices are spread evenly over as many claims as they can be, since a claim's devices are
to have one PCIe root: 8 and 8 make 8 claims of a pair, 8 and 2 make 2 of four GPUs and one RDMA device.
*/}}
{{- define "specfabric.claims" -}}
{{- $dra := .root.Values.dra -}}
{{- $gpus := (default dict .config.gpu).count | int -}}
{{- $nics := include "specfabric.rdmaCount" . | int -}}
{{- if and $dra.enabled (gt (add $gpus $nics) 0) -}}
{{- $copies := 1 -}}
{{- if and (gt $gpus 0) (gt $nics 0) -}}
{{- /* Their greatest common divisor; of 64 and less, Euclid's algorithm finds it in 9 steps. */ -}}
{{- $rest := $nics -}}
{{- $copies = $gpus -}}
{{- range until 9 -}}
{{- if gt $rest 0 -}}
{{- $next := mod $copies $rest | int -}}
{{- $copies = $rest -}}
{{- $rest = $next -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $requests := list -}}
{{- range list (list "gpu" $gpus $dra.gpu) (list "rdma" $nics $dra.rdma) -}}
{{- $class := index . 2 -}}
{{- if gt (index . 1) 0 -}}
{{- $exactly := dict "deviceClassName" (default "" $class.deviceClassName) "allocationMode" "ExactCount" "count" (div (index . 1) $copies) -}}
{{- $selectors := list -}}
{{- range $class.selectors -}}{{- $selectors = append $selectors (dict "cel" (dict "expression" .)) -}}{{- end -}}
{{- if $selectors -}}{{- $_ := set $exactly "selectors" $selectors -}}{{- end -}}
{{- $requests = append $requests (dict "name" (index . 0) "exactly" $exactly) -}}
{{- end -}}
{{- end -}}
{{- $devices := dict "requests" $requests -}}
{{- if and $dra.matchAttribute (gt (len $requests) 1) -}}
{{- $_ := set $devices "constraints" (list (dict "requests" (list "gpu" "rdma") "matchAttribute" $dra.matchAttribute)) -}}
{{- end -}}
{{- /* A template cannot be changed, so one with other devices has another name. */ -}}
{{- $name := printf "%s-devices-%s" (include "specfabric.fullname" .root) (toJson $devices | sha256sum | trunc 8) -}}
{{- dict "copies" $copies "name" $name "devices" $devices | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "specfabric.podClaims" -}}
{{- $claims := include "specfabric.claims" . | fromYaml -}}
{{- if $claims.name -}}
resourceClaims:
{{- range $claim := until (int $claims.copies) }}
  - name: devices-{{ $claim }}
    resourceClaimTemplateName: {{ $claims.name }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The role's own resources with its devices. */}}
{{- define "specfabric.resources" -}}
{{- $resources := deepCopy .config.resources -}}
{{- if .root.Values.dra.enabled -}}
{{- $claims := list -}}
{{- range $claim := until (int (include "specfabric.claims" . | fromYaml).copies) -}}
{{- $claims = append $claims (dict "name" (printf "devices-%d" $claim)) -}}
{{- end -}}
{{- if $claims -}}{{- $_ := set $resources "claims" $claims -}}{{- end -}}
{{- else -}}
{{- $limits := default dict $resources.limits -}}
{{- with .config.gpu -}}
{{- if gt (int .count) 0 -}}{{- $_ := set $limits .resourceName (int .count) -}}{{- end -}}
{{- end -}}
{{- $nics := include "specfabric.rdmaCount" . | int -}}
{{- if gt $nics 0 -}}{{- $_ := set $limits (default "" .root.Values.rdma.resourceName) $nics -}}{{- end -}}
{{- if $limits -}}{{- $_ := set $resources "limits" $limits -}}{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
