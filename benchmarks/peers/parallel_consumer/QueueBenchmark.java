import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.RecordContext;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * confluent's parallel-consumer in the benchmark `queue`, ordered by key: a handler that returns acknowledges its record, one
 * that throws has it delivered again after a delay. Arguments are NAME=VALUE, the fields of `Settings` in
 * benchmarks/queue/load.py, where the dialogue and the clock are described.
 */
public final class QueueBenchmark {
    private static final long WARM_UP_SHARE = 10;
    private static final double WARM_UP_SECONDS = 1.0;

    private final Map<String, String> settings = new HashMap<>();
    private final AtomicLong handled = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final Set<String> poisonSeen = ConcurrentHashMap.newKeySet();
    private final ConcurrentLinkedQueue<Double> delays = new ConcurrentLinkedQueue<>();
    private final CountDownLatch finished = new CountDownLatch(1);
    private final ScheduledExecutorService timers = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private final String kind;
    private final long records;
    private final long poison;
    private final long warmUp;
    private final long workNanos;
    private final long stepNanos;
    private volatile boolean hasBegun;
    private long begunAt, startedAt, endedAt, cpuStarted, cpuEnded, countedFrom, handledAtEnd;

    private QueueBenchmark(String[] arguments) {
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            settings.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        kind = settings.get("kind");
        records = Long.parseLong(settings.get("records"));
        poison = Long.parseLong(settings.get("poison"));
        warmUp = Math.max(1, records / WARM_UP_SHARE);
        workNanos = (long) (number("work") * 1e9);
        stepNanos = (long) (number("work_step") * 1e9);
    }

    private double number(String name) {
        return Double.parseDouble(settings.get(name));
    }

    // --- the clock ------------------------------------------------------------------------------------------------------

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private synchronized void begin() {
        if (hasBegun) {
            return;
        }
        begunAt = System.nanoTime();
        hasBegun = true;
        if (kind.equals("work")) {
            timers.schedule(this::end, (long) (number("limit") * 1e9), TimeUnit.NANOSECONDS);
            timers.schedule(this::startClock, (long) (WARM_UP_SECONDS * 1e9), TimeUnit.NANOSECONDS);
        }
    }

    private synchronized void startClock() {
        if (startedAt == 0) {
            startedAt = System.nanoTime();
            cpuStarted = cpu();
            countedFrom = handled.get();
        }
    }

    private synchronized void end() {
        if (endedAt == 0) {
            endedAt = System.nanoTime();
            cpuEnded = cpu();
            handledAtEnd = handled.get();
            finished.countDown();
        }
    }

    private void done() {
        long count = handled.incrementAndGet();
        if (count == records) {
            end();
        } else if (count == warmUp) {
            startClock();
        }
    }

    // --- the handler ----------------------------------------------------------------------------------------------------

    private void handle(ConsumerRecord<byte[], byte[]> record) {
        if (!hasBegun) {
            begin();
        }
        try {
            if (kind.equals("block")) {
                if (handled.getAndIncrement() == 0) {
                    System.out.println("blocked");
                }
                new CountDownLatch(1).await();
            }
            long nanos = workNanos + record.offset() % 5 * stepNanos;
            if (kind.equals("work") && nanos > 0) {
                Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return;
        }
        if (record.key()[0] == 'p') {
            failed.incrementAndGet();
            if (poisonSeen.size() < poison && poisonSeen.add(new String(record.key())) && poisonSeen.size() == poison) {
                System.out.println("waiting");
            }
            throw new IllegalStateException("poison");
        }
        if (kind.equals("fresh")) {
            String digits = new String(record.value()).replaceAll("[^0-9]", "");
            delays.add((System.nanoTime() - Long.parseLong(digits)) / 1e9); // {"at": nanoseconds}
        }
        done();
    }

    private Duration delay(RecordContext<byte[], byte[]> record) {
        double delay = number("retry") * Math.pow(number("retry_factor"), Math.min(60, record.getNumberOfFailedAttempts() - 1));
        return Duration.ofMillis((long) (Math.min(delay, number("retry_max")) * 1000));
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", settings.get("bootstrap_servers"));
        properties.put("group.id", settings.get("group_id"));
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return properties;
    }

    private void run() throws IOException, InterruptedException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        input.readLine();
        Thread stop = new Thread(() -> {
            try {
                input.readLine();
            } catch (IOException error) {
                // the benchmark has ended
            }
            end();
        });
        stop.setDaemon(true);
        stop.start();
        ParallelConsumerOptions<byte[], byte[]> options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .consumer(new KafkaConsumer<byte[], byte[]>(properties()))
            .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
            .maxConcurrency(Integer.parseInt(settings.get("concurrency")))
            .retryDelayProvider(this::delay)
            .build();
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(settings.get("topic")));
        processor.poll(context -> handle(context.getSingleConsumerRecord()));
        finished.await();
        try {
            processor.closeDontDrainFirst(Duration.ofSeconds(5));
        } catch (RuntimeException error) {
            System.err.println(error); // handlers that block do not end in time
        }
        System.out.println(figures());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private String figures() {
        long started = startedAt == 0 ? begunAt : startedAt;
        List<String> texts = new ArrayList<>();
        delays.forEach(delay -> texts.add(Double.toString(delay)));
        return String.format(
            "{\"handled\": %d, \"failed\": %d, \"poison_seen\": %d, \"counted\": %d, \"seconds\": %s, \"cpu_seconds\": %s, \"delays\": [%s]}",
            handledAtEnd, failed.get(), poisonSeen.size(), handledAtEnd - countedFrom,
            Double.toString(started == 0 ? 0 : (endedAt - started) / 1e9),
            Double.toString(cpuStarted == 0 ? 0 : (cpuEnded - cpuStarted) / 1e9), String.join(", ", texts));
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        new QueueBenchmark(arguments).run();
    }
}
