{{/*
Where a model comes from. All but targetModelFolder take a dict: root, role, config, model, volume (the
name of its volume) and folder (where it is mounted). Without a source, which validate.yaml refuses,
they render nothing: `helm lint` goes on after a refusal. From a hub, an init container brings it into
the pod; gateways ask for the tokenizer's files alone.
*/}}

{{/* Where a draft has the target's model: apart from its own, in /models, which may have that name. */}}
{{- define "specfabric.targetModelFolder" -}}
/target/{{ .name }}
{{- end -}}

{{- define "specfabric.modelVolume" -}}
{{- $model := .model -}}
- name: {{ .volume }}
{{- if $model.pvc }}
  persistentVolumeClaim:
    claimName: {{ $model.pvc.claimName }}
    readOnly: true
{{- else if $model.hostPath }}
  hostPath:
    path: {{ $model.hostPath.path }}
    type: Directory
{{- else if $model.hub }}
  emptyDir:
    sizeLimit: {{ eq .role "gateway" | ternary "1Gi" (default "100Gi" $model.hub.size) }}
{{- end }}
{{- end -}}

{{- define "specfabric.modelMount" -}}
- name: {{ .volume }}
  mountPath: {{ .folder }}
  readOnly: true
{{- if .model.pvc }}
{{- with .model.pvc.path }}
  subPath: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specfabric.modelInit" -}}
{{- with .model.hub -}}
- name: fetch-{{ $.volume }}
  image: {{ include "specfabric.image" $.root }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  command: [python3, /opt/scripts/fetch_model.py]
  args:
    - --endpoint={{ .endpoint }}
    - --repository={{ .repository }}
    - --revision={{ default "main" .revision }}
    - --folder={{ $.folder }}
    {{- if eq $.role "gateway" }}
    - --without_weights
    {{- end }}
  env:
    {{- with $.root.Values.commonEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - name: HUB_TOKEN
    {{- if .tokenSecret }}
      valueFrom:
        secretKeyRef:
          name: {{ .tokenSecret.name }}
          key: {{ default "token" .tokenSecret.key }}
    {{- else }}
      value: ""
    {{- end }}
  resources:
    {{- toYaml $.config.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - name: {{ $.volume }}
      mountPath: {{ $.folder }}
    - name: scripts
      mountPath: /opt/scripts
      readOnly: true
{{- end }}
{{- end -}}
