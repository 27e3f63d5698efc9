{{- /* What tells the gateways' pods from the key services', where they are apart. */}}
{{- define "pqkeep.gateways" -}}
{{- if .Values.cluster.enabled }}
app.kubernetes.io/component: gateway
{{- end }}
{{- end }}

{{- /* The tables of the gateway's settings that say where the key services are: each pod has a name
of its own. */}}
{{- define "pqkeep.shards" -}}
[link]
name = {{ .Values.cluster.name | quote }}
{{ include "pqkeep.link" . }}
{{- range $shard := .Values.cluster.shards }}
[shards.{{ $shard.name }}]
addresses = [
{{- $service := printf "%s-keyservice-%s" $.Release.Name $shard.name }}
{{- range $number := until (int $shard.replicas) }}
  "{{ $service }}-{{ $number }}.{{ $service }}:7443",
{{- end }}
]
{{- end }}
{{- end }}

{{- /* The certificate of either process. */}}
{{- define "pqkeep.link" -}}
certificate = "/run/secrets/pqkeep/link.crt"
key = "/run/secrets/pqkeep/link.key"
ca = "/run/secrets/pqkeep/link.ca"
require_post_quantum = {{ .Values.cluster.requirePostQuantum }}
{{ end }}

{{- /* What the pods of gateways and key services have in common. */}}
{{- define "pqkeep.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 30
securityContext:
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

{{- /* What has to be so for several pods. */}}
{{- define "pqkeep.require" -}}
{{- if not (hasPrefix "postgresql:" .Values.gateway.database) }}
{{- fail "cluster.enabled: gateway.database must be a postgresql:// address" }}
{{- end }}
{{- if not .Values.gateway.redisUrl }}
{{- fail "cluster.enabled: several gateways need gateway.redisUrl" }}
{{- end }}
{{- range .Values.cluster.shards }}
{{- if not (hasPrefix "postgresql:" .database) }}
{{- fail (printf "cluster.shards: the database of %s must be a postgresql:// address" .name) }}
{{- end }}
{{- end }}
{{- end }}
