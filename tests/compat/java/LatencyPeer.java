import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** How long messages take from just before send() to the listener, at a steady rate, by the official producer and push consumer in one JVM with one clock. */
public class LatencyPeer {
    static final int BODY = 1024;
    static final byte[] MINE = Long.toHexString(System.nanoTime()).getBytes();

    /** Arguments: name server, topic, messages a second, seconds of warm-up, seconds that count. */
    public static void main(String[] args) {
        try {
            run(args[0], args[1], Integer.parseInt(args[2]), Double.parseDouble(args[3]), Double.parseDouble(args[4]));
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }

    static void run(String nameServer, String topic, int rate, double warmUp, double seconds) throws Exception {
        int skipped = (int) (rate * warmUp), total = skipped + (int) (rate * seconds);
        long[] deliveries = new long[total], sends = new long[total];
        AtomicInteger received = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("latency-" + System.currentTimeMillis());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(message -> {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                byte[] sender = new byte[MINE.length];
                int number = body.getInt();
                long begun = body.getLong();
                body.get(sender);
                if (!Arrays.equals(sender, MINE) || number < 0 || deliveries[number] != 0) return; // an earlier run's, or a second delivery
                deliveries[number] = now - begun;
                received.incrementAndGet();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("latency-producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        Thread.sleep(2000); // the consumer has its queues
        long start = System.nanoTime();
        for (int number = 0; number < total; number++) {
            long due = start + number * 1_000_000_000L / rate, left;
            while ((left = due - System.nanoTime()) > 0) LockSupport.parkNanos(left);
            long begun = System.nanoTime();
            producer.send(new Message(topic, ByteBuffer.allocate(BODY).putInt(number).putLong(begun).put(MINE).array()));
            sends[number] = System.nanoTime() - begun;
        }
        double lasted = (System.nanoTime() - start) / 1e9;
        for (int i = 0; i < 600 && received.get() < total; i++) Thread.sleep(50);
        if (received.get() < total) throw new IllegalStateException((total - received.get()) + " of " + total + " messages did not come");
        System.out.println("LATENCY\t" + (total - skipped) + "\t" + total / lasted + times(deliveries, skipped) + times(sends, skipped));
    }

    /** p50, p99 and largest, in ms. */
    static String times(long[] values, int skipped) {
        long[] sorted = Arrays.copyOfRange(values, skipped, values.length);
        Arrays.sort(sorted);
        StringBuilder line = new StringBuilder();
        for (int i : new int[] {sorted.length / 2, (int) (sorted.length * 0.99), sorted.length - 1}) line.append('\t').append(sorted[i] / 1e6);
        return line.toString();
    }
}
