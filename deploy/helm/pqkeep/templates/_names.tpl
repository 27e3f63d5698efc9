{{- define "pqkeep.labels" -}}
{{ include "pqkeep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pqkeep.selector" -}}
app.kubernetes.io/name: pqkeep
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Selects the pods with a gateway. Pods of jobs have other components. */}}
{{- define "pqkeep.gateways" -}}
{{ include "pqkeep.selector" . }}
app.kubernetes.io/component: gateway
{{- end }}

{{- /* The addresses at which clients reach the gateway, one a line: gateway.publicUrl, or else the hosts
of the Ingress or the route, or else the service. */}}
{{- define "pqkeep.addresses" -}}
{{- $hosts := list }}
{{- if .Values.ingress.enabled }}{{ $hosts = .Values.ingress.hosts }}{{ end }}
{{- if .Values.route.enabled }}{{ $hosts = uniq (concat $hosts .Values.route.hostnames) }}{{ end }}
{{- if .Values.gateway.publicUrl }}
{{- .Values.gateway.publicUrl }}
{{- else if $hosts }}
{{- printf "https://%s" (join "\nhttps://" $hosts) }}
{{- else }}
{{- printf "%s://%s.%s.svc:%v (inside the cluster)" (.Values.gateway.trustedProxies | empty | ternary "https" "http") .Release.Name .Release.Namespace .Values.service.port }}
{{- end }}
{{- end }}

{{- /* The security context of every container. Takes the user id. */}}
{{- define "pqkeep.security" -}}
runAsUser: {{ . }}
runAsGroup: {{ . }}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The common part of every pod. A service named pqkeep-gateway would set PQKEEP_GATEWAY_…
variables, which are settings. */}}
{{- define "pqkeep.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  fsGroup: {{ .Values.users.group }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The name of a process's object: RELEASE-gateway, RELEASE-keyservice, and with shards
RELEASE-keyservice-SHARD. */}}
{{- define "pqkeep.secrets-folder" -}}
/run/secrets/pqkeep-{{ . }}
{{- end }}

{{- /* A folder that only its user can enter, in a volume of the process. A new volume has none, and
gets one with an empty database: the process itself makes no database. */}}
{{- define "pqkeep.prepare" -}}
import os, pathlib
os.umask(0o077)
folder = pathlib.Path({{ printf "/volumes/%s/data" .process | quote }})
if not folder.exists():
    draft = folder.with_name(".data")
    draft.mkdir(mode=0o700, exist_ok=True)
    {{- if not (hasPrefix "postgresql:" .database) }}
    (draft / {{ base .database | quote }}).touch(mode=0o600)
    {{- end }}
    draft.rename(folder)
{{- end }}

{{- /* The containers of a process: the process, and pqkeepd beside it. Takes root, process (gateway,
keyservice), folder (of the data directory), secrets (folder), hasVolume and run (folder of sockets). */}}
{{- define "pqkeep.containers" -}}
{{- $values := index .root.Values .process }}
{{- $user := index .root.Values.users .process }}
- name: {{ .process }}
  image: {{ index .root.Values.images .process | quote }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  args: [/var/lib/pqkeep/{{ .folder }}/settings.toml]
  {{- with $values.extraEnv }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .process "gateway" }}
  ports:
    - {name: api, containerPort: 8443}
    - {name: management, containerPort: 8081}
  startupProbe:
    httpGet: {path: /livez, port: management}
    periodSeconds: 2
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /livez, port: management}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: management}
    periodSeconds: 5
    timeoutSeconds: 3
  {{- else if .root.Values.cluster.enabled }}
  ports:
    - {name: link, containerPort: 7443}
  {{- end }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  securityContext: {{- include "pqkeep.security" $user | nindent 4 }}
  volumeMounts: {{- include "pqkeep.mounts" . | nindent 4 }}
    {{- with $values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- if .root.Values.admin.enabled }}
- name: {{ .process }}-admin
  image: {{ .root.Values.images.admin | quote }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  command: [/opt/pqkeep/bin/python, -I, -c]
  args: ["import signal; signal.sigwait({signal.SIGTERM})"]
  {{- with $values.extraEnv }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  resources: {{- toYaml .root.Values.admin.resources | nindent 4 }}
  securityContext: {{- include "pqkeep.security" $user | nindent 4 }}
  volumeMounts: {{- include "pqkeep.mounts" . | nindent 4 }}
    {{- with $values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}

{{- define "pqkeep.mounts" -}}
- {name: {{ .process }}-settings, mountPath: /var/lib/pqkeep/{{ .folder }}, readOnly: true}
- {name: {{ .process }}-secret, mountPath: {{ .secrets }}, readOnly: true}
{{- if and (eq .process "gateway") (not .root.Values.gateway.trustedProxies) }}
- {name: tls, mountPath: {{ include "pqkeep.secrets-folder" "tls" }}, readOnly: true}
{{- end }}
{{- if .hasVolume }}
- {name: {{ .process }}-data, mountPath: /volumes/{{ .process }}}
{{- end }}
{{- with .run }}
- {name: run, mountPath: {{ . }}{{ if eq $.process "gateway" }}, readOnly: true{{ end }}}
{{- end }}
- {name: {{ .process }}-tmp, mountPath: /tmp}
{{- end }}

{{- /* The volumes of a process, except its data. Takes root, process, settings (the name of the
ConfigMap) and secret. */}}
{{- define "pqkeep.volumes" -}}
- name: {{ .process }}-settings
  configMap: {name: {{ .settings }}}
- name: {{ .process }}-secret
  secret: {secretName: {{ .secret | quote }}, defaultMode: 0440}
{{- if and (eq .process "gateway") (not .root.Values.gateway.trustedProxies) }}
- name: tls
  secret:
    secretName: {{ .root.Values.secrets.tls | quote }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
- name: {{ .process }}-tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with (index .root.Values .process).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
