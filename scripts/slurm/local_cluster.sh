#!/usr/bin/env bash
# A SLURM cluster of two nodes, n1 and n2, on this machine: to try the batch scripts, and for tests/slurm.
#
#   sudo scripts/slurm/local_cluster.sh start FOLDER     # then: export SLURM_CONF=FOLDER/slurm.conf
#   sudo scripts/slurm/local_cluster.sh stop FOLDER
#
# It needs Debian's slurm-wlm and munge, and root, since SLURM starts jobs as the user who submitted them. All files are
# below FOLDER, which must be new or the folder of a stopped cluster; munge's key is created there too.
set -euo pipefail

usage() {
  sed -n '2,5s/^# \{0,1\}//p' "$0"
  exit 2
}

[ $# = 2 ] || usage
mkdir -p "$2"
folder="$(cd "$2" && pwd)"
export SLURM_CONF="$folder/slurm.conf"

missing() {
  for program in slurmctld slurmd munged sinfo; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || echo "$program"
  done
}

running() { # whether the process of a pid file is alive
  [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null
}

end() { # stop a daemon by its pid file
  running "$1" || return 0
  local pid
  pid="$(cat "$1")"
  kill "$pid"
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -9 "$pid"
}

free_ports() { # print N unused ports of this machine
  python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PYTHON
}

start() {
  [ "$(id -u)" = 0 ] || { echo "local_cluster.sh: SLURM needs root here" >&2; exit 3; }
  local lacking
  lacking="$(missing)"
  [ -z "$lacking" ] || { echo "local_cluster.sh: not installed:" $lacking "(apt-get install slurm-wlm munge)" >&2; exit 3; }
  ! running "$folder/slurmctld.pid" || { echo "local_cluster.sh: $folder has a running cluster" >&2; exit 3; }
  export PATH="$PATH:/usr/sbin:/sbin"
  local port first second cpus
  read -r port first second <<<"$(free_ports 3)"
  cpus="$(nproc)"
  mkdir -p "$folder/state" "$folder/n1" "$folder/n2" "$folder/munge"
  chmod 755 "$folder" "$folder/munge"
  (umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
  munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
  cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdPidFile=$folder/%n/slurmd.pid
SlurmdLogFile=$folder/%n/slurmd.log
SlurmdSpoolDir=$folder/%n
StateSaveLocation=$folder/state
MpiDefault=none
# Two daemons on one machine cannot share control groups: processes are tracked by their parents.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
ReturnToService=2
InactiveLimit=0
KillWait=30
SchedulerParameters=sched_interval=5
# Each node offers all processors of this machine; the nodes share them.
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$first CPUs=$cpus State=UNKNOWN
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$second CPUs=$cpus State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
  slurmctld
  slurmd -N n1
  slurmd -N n2
  for _ in $(seq 150); do
    if [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null | tr -d ' ')" = 2 ]; then
      echo "two nodes are idle; now: export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.2
  done
  echo "local_cluster.sh: the nodes did not start; see $folder/*.log and $folder/n?/slurmd.log" >&2
  stop
  exit 3
}

stop() {
  if running "$folder/slurmctld.pid"; then
    scancel --signal=KILL --full --user="$(id -un)" 2>/dev/null || true
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 100); do
      [ -n "$(squeue --noheader 2>/dev/null)" ] || break
      sleep 0.1
    done
  fi
  end "$folder/n1/slurmd.pid"
  end "$folder/n2/slurmd.pid"
  end "$folder/slurmctld.pid"
  end "$folder/munge/pid"
}

case "$1" in
  start) start ;;
  stop) stop ;;
  *) usage ;;
esac
