import java.lang.reflect.Method;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends timed messages, then takes them back: see CallTimes for what it prints. By reflection: releases before 5.0 have none of
 *  this, and compile this file, too. */
public class RecallLoad {
    static final int SENDERS = 64;
    static final long FIRST_MS = 3_600_000, LAST_MS = 7_200_000;
    static final byte[] BODY = new byte[1024];

    /** Arguments: name server, topic, seconds of sends, of warm-up, for each number of threads, these numbers (the smallest first). It
     *  sends before each, and calls only while there is something to recall. */
    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }

    static void run(String[] args) throws Exception {
        String topic = args[1];
        double sends = Double.parseDouble(args[2]), warmUp = Double.parseDouble(args[3]), seconds = Double.parseDouble(args[4]);
        Method delay = Message.class.getMethod("setDelayTimeMs", long.class), handle = SendResult.class.getMethod("getRecallHandle");
        Method recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        DefaultMQProducer producer = new DefaultMQProducer("load-recalls");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        ConcurrentLinkedQueue<String> handles = new ConcurrentLinkedQueue<>();
        CallTimes.Call sendTimed = () -> {
            Message message = new Message(topic, BODY);
            delay.invoke(message, ThreadLocalRandom.current().nextLong(FIRST_MS, LAST_MS));
            handles.add((String) handle.invoke(producer.send(message)));
            return true;
        };
        CallTimes.Call takeBack = () -> {
            String next = handles.poll();
            if (next == null) return false;
            if (recall.invoke(producer, topic, next) == null) throw new IllegalStateException(next + " was not recalled");
            return true;
        };
        for (int i = 5; i < args.length; i++) {
            CallTimes.measure("timed sends", SENDERS, 0, sends, sendTimed);
            CallTimes.measure("recalls", Integer.parseInt(args[i]), i == 5 ? warmUp : 0, seconds, takeBack);
        }
    }
}
