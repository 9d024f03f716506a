#!/bin/bash
# RDMA, network, TCP, memory and pressure metrics the usual way: one `cat` for a value, one `awk` for a table.
host=$1
for port in "$SYSFS"/class/infiniband/*/ports/*; do
    device=${port%/ports/*}
    labels="device=\"${device##*/}\",port=\"${port##*/}\",host=\"$host\""
    for file in "$port"/counters/* "$port"/hw_counters/*; do
        [ "${file##*/}" = lifespan ] || echo "hw_rdma_${file##*/}_total{$labels} $(cat "$file")"
    done
    state=$(cat "$port/state")
    case $state in *ACTIVE*) echo "hw_rdma_port_state{$labels} 1" ;; *) echo "hw_rdma_port_state{$labels} 0" ;; esac
done
awk -v h="$host" -F'[: ]+' 'NR > 2 && $2 !~ /^(lo|docker0|veth)/ {
    l = "{device=\"" $2 "\",host=\"" h "\"} "
    print "hw_net_rx_bytes_total" l $3; print "hw_net_rx_errors_total" l $5; print "hw_net_rx_drop_total" l $6
    print "hw_net_tx_bytes_total" l $11; print "hw_net_tx_errors_total" l $13; print "hw_net_tx_drop_total" l $14
}' /proc/net/dev
awk -v h="$host" '/^procs_running|^procs_blocked/ {print "hw_" $1 "{host=\"" h "\"} " $2}
    /^ctxt/ {print "hw_context_switches_total{host=\"" h "\"} " $2}' /proc/stat
awk -v h="$host" '/^(Dirty|Writeback):/ {sub(":", "", $1); print "hw_mem_" tolower($1) "_bytes{host=\"" h "\"} " $2 * 1024}' \
    /proc/meminfo
awk -v h="$host" '/^oom_kill / {print "hw_oom_kills_total{host=\"" h "\"} " $2}' /proc/vmstat
awk -v h="$host" '/^Tcp:/ {if (seen++) {for (i = 2; i <= NF; i++) if (name[i] == "RetransSegs")
    print "hw_tcp_retransmits_total{host=\"" h "\"} " $i} else split($0, name)}' /proc/net/snmp
[ -r /proc/pressure/io ] && awk -v h="$host" -F'[ =]' '{print "hw_io_pressure_" $1 "_pct{host=\"" h "\"} " $3}' \
    /proc/pressure/io
true
