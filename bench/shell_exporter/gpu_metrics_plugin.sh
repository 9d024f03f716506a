#!/bin/bash
# GPU and PCIe metrics the usual way: one `cat` for a value, one `awk` for a table. $1 is the host, $SYSFS the tree.
host=$1 index=0
for hwmon in $(for name in "$SYSFS"/class/hwmon/hwmon*/name; do
    [ "$(cat "$name")" = amdgpu ] && echo "$(basename "$(readlink -f "$(dirname "$name")/device")") $(dirname "$name")"
done | sort | awk '{print $2}'); do
    labels="gpu=\"$index\",host=\"$host\"" device=$hwmon/device
    echo "hw_gpu_temperature_celsius{$labels} $(($(cat "$hwmon/temp2_input") / 1000))"
    echo "hw_gpu_memory_temperature_celsius{$labels} $(($(cat "$hwmon/temp3_input") / 1000))"
    echo "hw_gpu_power_watts{$labels} $(($(cat "$hwmon/power1_input") / 1000000))"
    echo "hw_gpu_clock_mhz{type=\"sclk\",$labels} $(($(cat "$hwmon/freq1_input") / 1000000))"
    echo "hw_gpu_clock_mhz{type=\"mclk\",$labels} $(($(cat "$hwmon/freq2_input") / 1000000))"
    echo "hw_gpu_vram_used_bytes{$labels} $(cat "$device/mem_info_vram_used")"
    echo "hw_gpu_vram_total_bytes{$labels} $(cat "$device/mem_info_vram_total")"
    for block in umc xgmi_wafl gfx mmhub sdma; do
        awk -v n="hw_gpu_ras_${block%_wafl}" -v l="$labels" -F': *' \
            '$1 ~ /^(ue|ce)$/ {print n "_" $1 "_total{" l "} " $2}' "$device/ras/aca_$block"
    done
    for kind in correctable nonfatal fatal; do
        awk -v n="hw_gpu_pcie_${kind}_total" -v l="$labels" '/^TOTAL_ERR/ {print n "{" l "} " $2}' "$device/aer_dev_$kind"
    done
    index=$((index + 1))
done
echo "hw_gpu_user_processes{host=\"$host\"} $(ls "$SYSFS/class/kfd/kfd/proc" | grep -c '^[0-9]*$')"
