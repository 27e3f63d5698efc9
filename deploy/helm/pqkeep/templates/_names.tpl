{{- define "pqkeep.labels" -}}
app.kubernetes.io/name: pqkeep
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pqkeep.selector" -}}
app.kubernetes.io/name: pqkeep
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What both containers of a process have in common. Takes the process's user id. */}}
{{- define "pqkeep.security" -}}
runAsUser: {{ . }}
runAsGroup: {{ . }}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* A secret volume's files can be read by the pod's group, which both processes are in: each has a
copy in memory with mode 0400. The folder of its data is one that only it can enter; where there is
none the volume is new, and gets an empty database, which a process does not make itself. Takes the
database. */}}
{{- define "pqkeep.prepare" -}}
import os, pathlib, shutil
os.umask(0o077)
for file in pathlib.Path("/mnt/secret").iterdir():
    if file.is_file():
        copy = pathlib.Path("/run/secrets/pqkeep") / file.name
        copy.unlink(missing_ok=True)
        shutil.copyfile(file, copy)
        copy.chmod(0o400)
folder = pathlib.Path("/var/lib/pqkeep/data")
if not folder.exists():
    draft = folder.with_name(".data")
    draft.mkdir(mode=0o700, exist_ok=True)
    {{- if not (hasPrefix "postgresql:" .) }}
    (draft / {{ base . | quote }}).touch(mode=0o600)
    {{- end }}
    draft.rename(folder)
{{- end }}
