{{/* What every pod of ours has: who it is, and what it may not do. Given (dict "root" $ "part" "worker"). */}}
{{- define "labels" -}}
app.kubernetes.io/name: agentlightning
app.kubernetes.io/instance: {{ .root.Values.name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.graceSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- if .runs }}
{{- if eq .root.Values.storage.accessMode "ReadWriteOnce" }}
# such a volume is one machine's: what reads the runs goes where the others are
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            agentlightning/runs: {{ .root.Values.name }}
{{- end }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {}
{{- if .runs }}
  - name: runs
    persistentVolumeClaim:
      claimName: {{ .root.Values.name }}-runs
{{- end }}
{{- end }}

{{- define "container" -}}
name: {{ .part }}
image: {{ .values.image | quote }}
imagePullPolicy: {{ .root.Values.pullPolicy | default "IfNotPresent" }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
{{- with .root.Values.store }}
  - name: LIGHTNING_STORE
    value: {{ . | quote }}
{{- end }}
{{- $secret := .root.Values.secret }}
{{- range .values.variables }}
  - name: {{ . }}
    valueFrom:
      secretKeyRef:
        name: {{ $secret }}
        key: {{ . }}
{{- end }}
{{- with .values.resources }}
resources:
{{ toYaml . | indent 2 }}
{{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- if .runs }}
  - name: runs
    mountPath: /runs
{{- end }}
{{- end }}

{{- define "listens" -}}
ports:
  - name: http
    containerPort: 8000
{{- end }}
