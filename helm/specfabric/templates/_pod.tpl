{{/*
The pod template of a role. A dict: root, role, pool (or ""), group (of ranks), config, model,
targetModel (of a draft that reads the target's too), port (its own, with its name; ranks have none),
args (further ones, YAML), readiness (name of the port that is asked /readyz).

Start-up, liveness and readiness are three questions. Every page of the admin port answers 503 until
the weights are loaded, so a 200 from /livez ends the start-up, for which startupSeconds are given; a
process that cannot start ends by itself. From then on /livez must answer. /readyz says whether to send
work, and being told no ends nothing: a gateway waits for its targets that way, and whoever drains
is taken out of its service.
*/}}
{{- define "specfabric.podTemplate" -}}
{{- $values := .root.Values -}}
{{- $own := dict "root" .root "role" .role "config" .config "model" .model "volume" "model" "folder" (print "/models/" (default "" .model.name)) -}}
{{- $models := list $own -}}
{{- $volumes := list $own -}}
{{- with .targetModel -}}
{{- $target := dict "root" $.root "role" $.role "config" $.config "model" . "volume" "target-model" "folder" (include "specfabric.targetModelFolder" .) -}}
{{- $models = append $models $target -}}
{{- /* A kubelet does not start a pod that has two volumes of one claim. */ -}}
{{- if and .pvc $own.model.pvc (eq .pvc.claimName $own.model.pvc.claimName) -}}
{{- $_ := set $target "volume" $own.volume -}}
{{- else -}}
{{- $volumes = append $volumes $target -}}
{{- end -}}
{{- end -}}
{{- $fetches := list -}}
{{- range $models -}}{{- if .model.hub -}}{{- $fetches = append $fetches . -}}{{- end -}}{{- end -}}
metadata:
  labels:
    {{- include "specfabric.podLabels" . | nindent 4 }}
    {{- with .config.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ .role }}
    {{- include "specfabric.podAnnotations" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "specfabric.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "specfabric.podSecurityContext" . | nindent 4 }}
  terminationGracePeriodSeconds: {{ add (int .config.drainTimeoutSeconds) (int (default 0 .config.preStopSeconds)) 10 }}
  {{- with include "specfabric.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "specfabric.podClaims" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $fetches }}
  initContainers:
    {{- range . }}
    {{- include "specfabric.modelInit" . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "specfabric.image" .root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [specfabric]
      args:
        {{- include "specfabric.args" . | nindent 8 }}
        {{- with .args }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with include "specfabric.furtherArgs" .config | trim }}
        {{- . | nindent 8 }}
        {{- end }}
      env:
        {{- include "specfabric.env" . | nindent 8 }}
      ports:
        {{- if .port }}
        - name: {{ .portName }}
          containerPort: {{ .port }}
        {{- end }}
        - name: admin
          containerPort: {{ $values.ports.admin }}
      startupProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add (int .config.startupSeconds) 4) 5 }}
      livenessProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: {{ .readiness }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- with .config.preStopSeconds }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ . }}
      {{- end }}
      resources:
        {{- include "specfabric.resources" . | nindent 8 }}
      securityContext:
        {{- include "specfabric.securityContext" . | nindent 8 }}
      volumeMounts:
        {{- range $models }}
        {{- include "specfabric.modelMount" . | nindent 8 }}
        {{- end }}
        - name: join
          mountPath: /etc/specfabric/join
          readOnly: true
        - name: tmp
          mountPath: /tmp
        {{- if .config.shmSize }}
        - name: shm
          mountPath: /dev/shm
        {{- end }}
  volumes:
    {{- range $volumes }}
    {{- include "specfabric.modelVolume" . | nindent 4 }}
    {{- end }}
    - name: join
      secret:
        secretName: {{ include "specfabric.joinSecretName" .root }}
        defaultMode: 0440
        items:
          - key: {{ $values.joinSecret.key }}
            path: {{ $values.joinSecret.key }}
    - name: tmp
      emptyDir:
        sizeLimit: 1Gi
    {{- with .config.shmSize }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ . }}
    {{- end }}
    {{- if $fetches }}
    - name: scripts
      configMap:
        name: {{ include "specfabric.fullname" .root }}-scripts
    {{- end }}
{{- end -}}
